"""Write a max pool in `ceil_mode` with padding instead, so that it has no more windows than in ONNX and torch."""

from __future__ import annotations

import onnx
from onnx import helper

from detent.rewrites import Editing, rewrite
from detent.rewrites.original import attribute_of
from detent.rewrites.window_axes import window_axes

__all__ = ["maxpool_ceil_mode_explicit_pad"]


@rewrite(
    why=(
        "OpenVINO keeps a window of `ceil_mode` that begins beyond the image, which ONNX and torch drop: its "
        "result is a row or column too large"
    ),
    needed_for=("openvino<=2026.4.1",),
)
def maxpool_ceil_mode_explicit_pad(editing: Editing) -> None:
    """Matches a MaxPool in `ceil_mode` on images of a known size that would have one window more."""
    for node in editing.nodes:
        if node.op_type != "MaxPool" or not attribute_of(node, "ceil_mode"):
            continue
        axes = window_axes(editing, node)
        if any(axis.begins_outside for axis in axes):
            ends = [max(0, axis.needed_end(ceil_mode=True)) for axis in axes]
            _write(node, [*(axis.begin for axis in axes), *ends])


def _write(node: onnx.NodeProto, pads: list[int]) -> None:
    kept = [attribute for attribute in node.attribute if attribute.name not in ("ceil_mode", "pads")]
    del node.attribute[:]
    node.attribute.extend([*kept, helper.make_attribute("pads", pads)])

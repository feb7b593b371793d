"""A max pool in `ceil_mode` with no more windows than ONNX and torch have: written with padding in place of it.

Where the last window of a row would begin behind all that is there, it is none in ONNX and torch. OpenVINO has it, so
that its result is larger by a row or column.
"""

from __future__ import annotations

import onnx
from onnx import helper

from detent.deploy.forms.editing import Editing
from detent.deploy.forms.original import attributes_of
from detent.deploy.forms.window_axes import window_axes

__all__ = ["max_pool_windows"]


def max_pool_windows(editing: Editing) -> None:
    """Every MaxPool in `ceil_mode` on images of a known size that would have one window more."""
    for node in editing.nodes:
        attributes = attributes_of(node) if node.op_type == "MaxPool" else {}
        if not attributes.get("ceil_mode"):
            continue
        found = window_axes(editing, node, attributes["kernel_shape"])
        axes = [_Axis(*each) for each in found]
        if any(axis.has_one_too_many for axis in axes):
            _write(node, [*(before for *_, before, _ in found), *(axis.behind for axis in axes)])


class _Axis:
    """One dimension of an image: `behind` is the padding with which all of its windows are whole."""

    def __init__(self, size: int, reach: int, stride: int, before: int, after: int):
        rounded_up = -(-(size + before + after - reach) // stride) + 1
        self.has_one_too_many = (rounded_up - 1) * stride >= size + before
        windows = rounded_up - self.has_one_too_many
        self.behind = max(0, (windows - 1) * stride + reach - size - before)


def _write(node: onnx.NodeProto, pads: list[int]) -> None:
    kept = [attribute for attribute in node.attribute if attribute.name not in ("ceil_mode", "pads")]
    del node.attribute[:]
    node.attribute.extend([*kept, helper.make_attribute("pads", pads)])

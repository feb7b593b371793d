"""Write a max pool in `ceil_mode` with padding instead, so that it has no more windows than in ONNX and torch."""

from __future__ import annotations

from detent.rewrites import NetworkEditor, rewrite
from detent.rewrites.window_axes import window_axes

__all__ = ["maxpool_ceil_mode_explicit_pad"]


@rewrite(
    why=(
        "OpenVINO keeps a window of `ceil_mode` that begins beyond the image, which ONNX and torch drop: its "
        "result is a row or column too large"
    ),
    needed_for=("openvino<=2026.4.1",),
)
def maxpool_ceil_mode_explicit_pad(editor: NetworkEditor) -> None:
    """Matches a MaxPool in `ceil_mode` on images of a known size that would have one window more."""
    for op in editor.ops("MaxPool"):
        axes = window_axes(editor, op) if op.attribute("ceil_mode") else ()
        if any(axis.begins_outside for axis in axes):
            ends = [max(0, axis.needed_end(ceil_mode=True)) for axis in axes]
            editor.change(op, ceil_mode=None, pads=[*(axis.begin for axis in axes), *ends])

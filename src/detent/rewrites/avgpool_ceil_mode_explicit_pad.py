"""Insert a Pad before an average pool in `ceil_mode` whose last windows reach beyond the padding.

In ONNX and torch padding counts if `count_include_pad` is set, and what lies beyond it never counts. After an explicit
Pad the pool has no padding of its own.
"""

from __future__ import annotations

from detent.rewrites.avgpool_count_include_pad import padded_before
from detent.rewrites.network_editor import NetworkEditor
from detent.rewrites.rewrite import rewrite
from detent.rewrites.window_axes import window_axes

__all__ = ["avgpool_ceil_mode_explicit_pad"]


@rewrite(
    why=(
        "The integer kernels of ONNX Runtime and OpenVINO also count what lies beyond the padding in the last "
        "windows of `ceil_mode`, which ONNX and torch do not: up to 69 LSB off"
    ),
    needed_for=("onnxruntime<=1.31.1", "openvino<=2026.4.1"),
)
def avgpool_ceil_mode_explicit_pad(editor: NetworkEditor) -> None:
    """Matches a quantized AveragePool with `ceil_mode` and `count_include_pad` whose windows end beyond the padding."""
    for op in editor.ops("AveragePool"):
        if not op.attribute("ceil_mode") or not op.attribute("count_include_pad"):
            continue
        found = editor.found(op)
        if found is None or op.attribute("auto_pad") != "NOTSET":
            continue
        axes = window_axes(editor, op)
        if not axes or not all(axis.is_whole for axis in axes):
            padded_before(editor, found)

"""Undoes rewrites that store the original operation."""

from __future__ import annotations

from collections.abc import Mapping

from detent.errors import OnnxError
from detent.ir import Network
from detent.rewrites import (
    conv_transpose_as_conv,
    densify_conv_transpose,
    dequantize_looked_up_rows,
    space_to_depth_strided_conv,
)
from detent.rewrites.network_editor import NetworkEditor
from detent.rewrites.original import Original
from detent.rewrites.restoring import Undo

__all__ = ["has_rewrites", "undo"]

_UNDO: Mapping[str, Undo] = {
    module.NAME: module.undo
    for module in (
        conv_transpose_as_conv,
        densify_conv_transpose,
        dequantize_looked_up_rows,
        space_to_depth_strided_conv,
    )
}


def has_rewrites(network: Network) -> bool:
    """Whether an operation of `network` keeps what it was before a rewrite."""
    return any(Original.of(op) is not None for op in network.ops)


def undo(network: Network) -> Network:
    """`network`, quantized or in float, with every operation that keeps an `Original` put back.

    A linear layer stays a product of matrices, which is as fast in float.
    """
    editor = NetworkEditor(network)
    for op in network.ops:
        original = Original.of(op)
        if original is None:
            continue
        if original.rewrite not in _UNDO:
            raise OnnxError(
                f"undo the rewrite {original.rewrite!r} of {op.label!r}",
                f"this release undoes {', '.join(_UNDO)}",
                "use the release of Detent that wrote the file",
            )
        _UNDO[original.rewrite](editor, op, original)
    return editor.finished()

"""Finds the tensors that OpenVINO stores as integers, including data movement and averages of codes, and tensors
quantized later."""

from __future__ import annotations

from collections.abc import Collection

from detent.ir import Encoding, Network, Operand, Trait, ops_with
from detent.ir.qparams import BOUNDS
from detent.rewrites import NetworkEditor
from detent.traversal import reachable

__all__ = ["KEEP_INTEGERS", "grid_before", "has_zero_point", "is_quantized"]

# What gives integers for integers there, and averages, which count as such.
KEEP_INTEGERS = (
    ops_with(Trait.MOVES_VALUES) - {"Expand", "GatherElements"}  # not proven for these
    | {"AveragePool", "Concat", "MaxPool", "Pad", "Relu", "Resize"}
)


def grid_before(editor: NetworkEditor, read: Operand) -> Encoding | None:
    """The grid that a tensor had last: since then its values were only moved or averaged."""
    return editor.origin(read, KEEP_INTEGERS).encoding


def has_zero_point(grid: Encoding) -> bool:
    """Whether OpenVINO subtracts one: codes that begin with zero it holds as unsigned ones, whatever their type is."""
    least, _ = BOUNDS[grid.dtype]
    return any(zero not in (0, least) for zero in grid.zero_point.reshape(-1).tolist())


def is_quantized(network: Network, tensor: str, through: Collection[str]) -> bool:
    """Whether a tensor is read on a grid, perhaps behind operations of these types."""

    def behind(name: str) -> list[str]:
        return [op.outputs[0] for op, _ in network.readers(name) if op.type in through]

    return any(encoding is not None for name in reachable([tensor], behind) for encoding in network.encodings(name))

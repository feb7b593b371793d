"""Grids as OpenVINO has them: ranges of FakeQuantize, and codes stored as uint8 or int8.

A range `il` to `ih` with `levels` codes (less one) is computed with as

    isc = f32(levels / f32(ih - il))        ish = f32(f32(-il * levels) / f32(ih - il))

so that neither the scale nor the zero point of a grid is what the plugin multiplies with and adds, and the scale of
what an operation reads is `f32(f32(ih - il) / levels)`, which may be one unit in the last place off.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from detent.ir import Encoding, Network, Op, Operand, Trait, ops_with
from detent.ir.qparams import BOUNDS
from detent.twin.accumulate import Accumulator
from detent.twin.float_ops import only_moves
from detent.twin.requantize import per_channel

__all__ = [
    "CLIPS",
    "NO_SHIFT",
    "Floats",
    "PropagatedGrids",
    "Range",
    "dequantized_sums",
    "divided_range",
    "drop_negligible",
    "merge_equal_shifts",
    "preserved_grid",
    "product_scale",
    "propagate_grids",
    "scale_and_shift",
]

Floats = npt.NDArray[np.float32]
PropagatedGrids = frozenset[str]
"""Tensors without a grid in the model, which are on that of the tensor they are moved from."""

CLIPS = ops_with(Trait.CLIPS)
_f32 = np.float32
_SAME_SHIFT = 5e-5  # shifts of channels that differ by less count as equal
NO_SHIFT = 1e-5  # a shift of less than this share of the codes is dropped


def propagate_grids(graph: Network) -> tuple[Network, PropagatedGrids]:
    """`graph` with grids propagated through data movement to readers that would otherwise read float."""
    grids: dict[str, Encoding] = {}
    given = graph.output_tensors
    ops = []
    for op in graph.ops:
        reads = tuple(_on_grid(read, grids) for read in op.inputs)
        ops.append(replace(op, inputs=reads))
        kept = preserved_grid(replace(op, inputs=reads))
        if kept is not None:
            free = [name for name in op.outputs if graph.encodings(name) == (None,) and name not in given]
            grids.update(dict.fromkeys(free, kept))
    return replace(graph, ops=tuple(ops)), frozenset(grids)


def preserved_grid(op: Op) -> Encoding | None:
    """The grid of an operation's input, if its output is on the same grid: data movement, or a Concat of tensors on one
    grid."""
    joined = op.type == "Concat"
    if not joined and not only_moves(op):
        return None
    read = {None if each is None else each.encoding for each in (op.inputs if joined else op.inputs[:1])}
    grid = read.pop() if len(read) == 1 else None
    return grid if grid is not None and grid.per_tensor else None


def _on_grid(read: Operand | None, grids: dict[str, Encoding]) -> Operand | None:
    if read is None or read.encoding is not None or read.tensor not in grids:
        return read
    return Operand(read.tensor, grids[read.tensor])


@dataclass(frozen=True)
class Range:
    """A grid as a FakeQuantize: float32 values, held as Python floats. It has all codes of the type, starting at
    `least`; a grid that uses fewer is preceded by a Clip."""

    low: float
    high: float
    levels: int
    scale: float
    shift: float
    step: float
    """The real number of one code, as the next operation multiplies with it."""
    least: int

    @classmethod
    def of(cls, encoding: Encoding) -> Range:
        least, greatest = BOUNDS[encoding.dtype]
        codes = [_f32(code - int(encoding.zero_point)) for code in (least, greatest)]
        low, high = (_f32(code * _f32(encoding.scale)) for code in codes)
        levels = greatest - least
        width = _f32(high - low)
        scale, shift = _f32(_f32(levels) / width), _f32(_f32(-low * _f32(levels)) / width)
        step = _f32(width / _f32(levels))
        return cls(float(low), float(high), levels, float(scale), float(shift), float(step), least)


def scale_and_shift(low: Floats, high: Floats, levels: int) -> tuple[Floats, Floats]:
    """Scale and shift of a range, for kernels that round the product and the sum once."""
    width = np.asarray(high - low, _f32)
    scale = np.asarray(_f32(levels) / width, _f32)
    return scale, np.asarray(np.asarray(-low * _f32(levels), _f32) / width, _f32)


def drop_negligible(shift: Floats, levels: int) -> Floats:
    """The shift, or 0 if it is negligible."""
    negligible = shift.size == 1 and float(np.abs(shift).max()) < levels * NO_SHIFT
    return np.zeros_like(shift) if negligible else np.asarray(shift, _f32)


def merge_equal_shifts(shift: Floats) -> Floats:
    """Shifts per channel; a single one if their differences are negligible."""
    first = shift.reshape(-1)[:1]
    return first.reshape(()) if bool((np.abs(shift - first) < _SAME_SHIFT).all()) else shift


def divided_range(grid: Range, unit: Floats, bias: Floats | None = None) -> tuple[Floats, Floats]:
    """Scale and shift of a range that the bias is subtracted from and that is divided by `unit`, the scale of the
    values before it."""
    ends = [_f32(bound) if bias is None else _f32(_f32(bound) - bias) for bound in (grid.low, grid.high)]
    low, high = (np.asarray(end / unit, _f32) for end in ends)
    return scale_and_shift(low, high, grid.levels)


def product_scale(sums: Accumulator) -> Floats:
    """The scale of the integer sums, one or one per channel."""
    return np.asarray(_f32(Range.of(sums.input).step) * sums.weight.scale, _f32)


def dequantized_sums(sums: Accumulator, unit: Floats, bias: Floats | None) -> Callable[[Tensor], Tensor]:
    """`f32(f32(acc * unit) + bias)`."""
    scale = per_channel(unit, sums.channels) if unit.size > 1 else float(unit)
    shift = None if bias is None else per_channel(bias, sums.channels)

    def real(accumulators: Tensor) -> Tensor:
        values = accumulators.to(torch.float32) * scale
        return values if shift is None else values.add_(shift)

    return real

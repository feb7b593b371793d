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
    "Carried",
    "Floats",
    "Range",
    "carry",
    "divided",
    "kept_grid",
    "one_shift",
    "real_sums",
    "scale_and_shift",
    "unit_of",
    "without_nothing",
]

Floats = npt.NDArray[np.float32]
Carried = frozenset[str]
"""Tensors that have no grid in the model, and are on that of what they were moved from."""

CLIPS = ops_with(Trait.CLIPS)
_f32 = np.float32
_SAME_SHIFT = 5e-5  # shifts of channels that differ by less are taken for one
NO_SHIFT = 1e-5  # a shift of less than this share of the codes is dropped


def carry(graph: Network) -> tuple[Network, Carried]:
    """`graph` with grids carried over operations that only move values, to readers that take floats."""
    grids: dict[str, Encoding] = {}
    given = graph.output_tensors
    ops = []
    for op in graph.ops:
        reads = tuple(_on_grid(read, grids) for read in op.inputs)
        ops.append(replace(op, inputs=reads))
        kept = kept_grid(replace(op, inputs=reads))
        if kept is not None:
            free = [name for name in op.outputs if graph.encodings(name) == (None,) and name not in given]
            grids.update(dict.fromkeys(free, kept))
    return replace(graph, ops=tuple(ops)), frozenset(grids)


def kept_grid(op: Op) -> Encoding | None:
    """The grid of what an operation reads, if what it gives is on it too: it only moves values, or puts together some
    that have one grid."""
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
    """A grid as a FakeQuantize: float32 numbers, held as Python floats. It has all codes of the type, from `least` on;
    a grid that uses fewer has a Clip before it."""

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
    """What a range is computed with where its product and sum are rounded once."""
    width = np.asarray(high - low, _f32)
    scale = np.asarray(_f32(levels) / width, _f32)
    return scale, np.asarray(np.asarray(-low * _f32(levels), _f32) / width, _f32)


def without_nothing(shift: Floats, levels: int) -> Floats:
    """A shift; one that is next to nothing is dropped."""
    negligible = shift.size == 1 and float(np.abs(shift).max()) < levels * NO_SHIFT
    return np.zeros_like(shift) if negligible else np.asarray(shift, _f32)


def one_shift(shift: Floats) -> Floats:
    """The shifts of channels; those that differ by next to nothing are taken for one."""
    first = shift.reshape(-1)[:1]
    return first.reshape(()) if bool((np.abs(shift - first) < _SAME_SHIFT).all()) else shift


def divided(grid: Range, unit: Floats, bias: Floats | None = None) -> tuple[Floats, Floats]:
    """Scale and shift of a range that is divided by what stood before it, and is less a bias first."""
    ends = [_f32(bound) if bias is None else _f32(_f32(bound) - bias) for bound in (grid.low, grid.high)]
    low, high = (np.asarray(end / unit, _f32) for end in ends)
    return scale_and_shift(low, high, grid.levels)


def unit_of(sums: Accumulator) -> Floats:
    """The real number of one in the sums of products, one or one for each channel."""
    return np.asarray(_f32(Range.of(sums.input).step) * sums.weight.scale, _f32)


def real_sums(sums: Accumulator, unit: Floats, bias: Floats | None) -> Callable[[Tensor], Tensor]:
    """`f32(f32(acc * unit) + bias)`."""
    scale = per_channel(unit, sums.channels) if unit.size > 1 else float(unit)
    shift = None if bias is None else per_channel(bias, sums.channels)

    def real(accumulators: Tensor) -> Tensor:
        values = accumulators.to(torch.float32) * scale
        return values if shift is None else values.add_(shift)

    return real

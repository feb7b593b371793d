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

from detent.deploy import Encoding, Op, QdqGraph, Read
from detent.twin.accumulate import Accumulator
from detent.twin.float_ops import only_moves
from detent.twin.lowering import Chain
from detent.twin.requantize import clamp_bounds, per_channel

__all__ = [
    "CLIPS",
    "Carried",
    "Floats",
    "Moved",
    "Range",
    "Stored",
    "Target",
    "carry",
    "divided",
    "kept_grid",
    "range_of_stored",
    "real_sums",
    "scale_and_shift",
    "unit_of",
    "without_nothing",
]

Floats = npt.NDArray[np.float32]
Carried = frozenset[str]
"""Tensors that have no grid in the model, and are on that of what they were moved from."""

CLIPS = ("Relu", "Clip")
_f32 = np.float32
_NO_SHIFT = 1e-5  # a shift of less than this share of the codes is dropped


def carry(graph: QdqGraph) -> tuple[QdqGraph, Carried]:
    """`graph` with grids carried over operations that only move values, to readers that take floats."""
    grids: dict[str, Encoding] = {}
    given = {output.read.tensor for output in graph.outputs}
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


def _on_grid(read: Read | None, grids: dict[str, Encoding]) -> Read | None:
    if read is None or read.encoding is not None or read.tensor not in grids:
        return read
    return Read(read.tensor, grids[read.tensor])


@dataclass(frozen=True)
class Range:
    """A grid as a FakeQuantize: float32 numbers, held as Python floats."""

    low: float
    high: float
    levels: int
    scale: float
    shift: float
    step: float
    """The real number of one code, as the next operation multiplies with it."""

    @classmethod
    def of(cls, encoding: Encoding) -> Range:
        codes = [_f32(code - int(encoding.zero_point)) for code in (encoding.qmin, encoding.qmax)]
        low, high = (_f32(code * _f32(encoding.scale)) for code in codes)
        levels = encoding.qmax - encoding.qmin
        width = _f32(high - low)
        scale, shift = _f32(_f32(levels) / width), _f32(_f32(-low * _f32(levels)) / width)
        return cls(float(low), float(high), levels, float(scale), float(shift), float(_f32(width / _f32(levels))))


@dataclass(frozen=True)
class Target:
    """Where an operation leaves its codes: the grid, and how the plugin stores them there.

    `given` says that the network gives them, as real numbers. Others are uint8, but for those with real zero in the
    middle that no convolution reads: these are stored as int8.

    What is stored is `rne(value) * step + low`. Where the step is 1 and `low` an integer, `low` is added before
    rounding, and decides to which side a tie falls: -128 for int8, and the least real number of a given grid of step 1,
    if `low_first`: not in a kernel that only adds. `moved_low` is what an addition behind it makes of `low`.
    """

    encoding: Encoding
    bounds: tuple[int, int]
    given: bool
    as_int8: bool
    low_first: bool = True
    moved_low: int = 0

    @classmethod
    def of(cls, graph: QdqGraph, made: Chain, carried: Carried, *, stored: bool = False) -> Target | None:
        """Where a chain ends; with `stored` it is stored as codes even if the network gives it."""
        if made.encoding is None or not made.encoding.per_tensor:
            return None
        bounds = clamp_bounds(graph, [op for op in made.ops[1:] if op.type in CLIPS], made.encoding)
        if bounds is None:
            return None
        given = not stored and _given(graph, made.output) and not graph.readers(made.output)
        return cls(made.encoding, bounds, given, not given and _as_int8(graph, made.output, made.encoding, carried))

    def shift(self, shift: Floats) -> Floats:
        """What is added before rounding."""
        return without_nothing(np.asarray(shift + _f32(self._low), _f32), self.encoding.qmax - self.encoding.qmin)

    def scale(self, scale: Floats, shift: Floats) -> Floats:
        """What is multiplied with. As the last thing of a kernel that gives codes, one scale without a shift is the
        scale of the kernel's destination, which is inverted twice."""
        if self.given or scale.size > 1 or shift.any():
            return scale
        return np.asarray(_f32(1) / np.asarray(_f32(1) / scale, _f32), _f32)

    def codes(self, values: Tensor) -> Tensor:
        """From scaled and shifted float32 numbers."""
        return values.round().add_(self.encoding.qmin - self._low).clamp_(*self.bounds)

    @property
    def _low(self) -> int:
        """What is added before rounding in place of after it."""
        if self.as_int8:
            return self.encoding.qmin - int(self.encoding.zero_point)
        grid = Range.of(self.encoding)
        whole = grid.step == 1 and grid.low.is_integer()
        return int(grid.low) if self.given and self.low_first and whole else self.moved_low


def _as_int8(graph: QdqGraph, tensor: str, encoding: Encoding, carried: Carried) -> bool:
    middle = encoding.dtype == "int8" and encoding.symmetric
    if not middle and (not encoding.full or int(encoding.zero_point) - encoding.qmin != 128):
        return False
    return not _reaches_convolution(graph, tensor, carried)


def _given(graph: QdqGraph, tensor: str) -> bool:
    return any(output.read.tensor == tensor for output in graph.outputs)


def _reaches_convolution(graph: QdqGraph, tensor: str, carried: Carried) -> bool:
    """Whether a convolution reads a tensor, or what was only moved from it: it takes uint8 alone."""
    return any(_takes_uint8(graph, op, carried) for op, _ in graph.readers(tensor))


def _takes_uint8(graph: QdqGraph, op: Op, carried: Carried) -> bool:
    if op.type == "Conv":
        return True
    return any(name in carried and _reaches_convolution(graph, name, carried) for name in op.outputs)


@dataclass(frozen=True)
class Stored:
    """A quantized tensor as the plugin stores it: `code - offset`, least code `least`, real zero at `zero`."""

    grid: Range
    offset: int
    least: int
    zero: float

    @classmethod
    def of(cls, graph: QdqGraph, tensor: str, encoding: Encoding, carried: Carried) -> Stored:
        grid = Range.of(encoding)
        if _as_int8(graph, tensor, encoding, carried):
            return cls(grid, int(encoding.zero_point), encoding.qmin - int(encoding.zero_point), 0.0)
        return cls(grid, encoding.qmin, 0, grid.shift)

    @property
    def step(self) -> float:
        return self.grid.step

    def in_steps_of(self, other: Stored) -> Moved:
        """The transformations move both scales and both zeros of an add into the range of this grid."""
        mine, its = _f32(self.step), _f32(other.step)
        zero = _f32(_f32(self.zero) + _f32(_f32(_f32(other.zero) * its) / mine))
        ratio = _f32(mine / its)
        low, high = (_f32(_f32(_f32(code) - zero) * ratio) for code in (self.least, self.least + self.grid.levels))
        step = _f32(_f32(high - low) / _f32(self.grid.levels))
        return Moved(self.grid, float(zero), float(ratio), float(step), float(low))


@dataclass(frozen=True)
class Moved:
    """A grid in steps of another, less the other's zero: `(stored - zero) * ratio`, or `code * step + low`."""

    grid: Range
    zero: float
    ratio: float
    step: float
    low: float

    def clamped(self, least: int, greatest: int) -> tuple[float, float, float, float]:
        """From a real number to this grid, clamped to two codes of it, counted from 0, but not rounded: scale, shift,
        and the bounds."""
        low, step = _f32(self.low), _f32(self.step)
        scale = _f32(_f32(self.grid.scale) * step)
        shift = _f32(_f32(_f32(self.grid.shift) * step) + low)
        high = _f32(_f32(_f32(self.grid.levels) * step) + low)
        if abs(shift) < (high - low) * _NO_SHIFT:
            shift = _f32(0)
        first, last = (float(_f32(_f32(_f32(code) * step) + low)) for code in (least, greatest))
        return float(scale), float(shift), first, last


def range_of_stored(grid: Range, source: Stored, factor: Floats | None = None) -> tuple[Floats, Floats]:
    """The bounds of a range of real numbers, for codes as they are stored that are multiplied by `factor`."""
    unit = _f32(source.step) if factor is None else np.asarray(_f32(source.step) * factor, _f32)
    low, high = (np.asarray(_f32(bound) / unit, _f32) for bound in (grid.low, grid.high))
    return np.asarray(low + _f32(source.zero), _f32), np.asarray(high + _f32(source.zero), _f32)


def scale_and_shift(low: Floats, high: Floats, levels: int) -> tuple[Floats, Floats]:
    """What a range is computed with where its product and sum are rounded once."""
    width = np.asarray(high - low, _f32)
    scale = np.asarray(_f32(levels) / width, _f32)
    return scale, np.asarray(np.asarray(-low * _f32(levels), _f32) / width, _f32)


def without_nothing(shift: Floats, levels: int) -> Floats:
    """A shift; one that is next to nothing is dropped."""
    negligible = shift.size == 1 and float(np.abs(shift).max()) < levels * _NO_SHIFT
    return np.zeros_like(shift) if negligible else np.asarray(shift, _f32)


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

"""How operations of OpenVINO requantize their output."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from detent.ir import Encoding, Network, Op, Trait, constant_values, ops_with
from detent.ir.qparams import BOUNDS
from detent.targets.openvino.arithmetic.ranges import (
    CLIPS,
    Floats,
    PropagatedGrids,
    Range,
    drop_negligible,
    preserved_grid,
)
from detent.targets.openvino.arithmetic.stored import is_int8
from detent.twin.lowering import Chain
from detent.twin.requantize import clamp_bounds

__all__ = ["OutputRequantization", "Requantize", "is_read_in_float", "snippet"]

_f32 = np.float32
_READ_FLOAT = ops_with(Trait.ACTIVATION) - {"LeakyRelu"} | {"Max", "Min", "Softmax"}
_ALIGNED = 1e-4  # a shift of int8 that is less than this from 128 is left out
Requantize = Callable[[Tensor], Tensor]
"""From sums, or from codes as they are stored, to codes."""


@dataclass(frozen=True)
class OutputRequantization:
    """The grid of an operation's output, and how the plugin stores its codes.

    `as_float`: the output is dequantized, because it is an output of the network or read in float. Other outputs are
    stored as uint8, unless their zero point is in the middle of the range and no convolution reads them: those are
    int8.

    The stored value is `rne(value) * step + low`. `composed`: a convolution or matrix product produces the output, and
    the plugin simplifies its post-operations: if the step is 1 and `low` an integer, `low` is added before rounding,
    which decides the direction of ties. It is -128 for int8, and the lowest real number of a dequantized grid with step
    1. `moved_low` is what a following addition turns `low` into. All other kernels apply the range as it is.
    """

    encoding: Encoding
    bounds: tuple[int, int]
    as_float: bool
    as_int8: bool
    composed: bool = True
    moved_low: int = 0

    @classmethod
    def of(
        cls, graph: Network, made: Chain, propagated: PropagatedGrids, *, stored: bool = False, composed: bool = True
    ) -> OutputRequantization | None:
        """The requantization at the end of a chain; with `stored` the result is stored as codes even if it is an output
        of the network."""
        if made.encoding is None or not made.encoding.per_tensor:
            return None
        bounds = clamp_bounds(graph, [op for op in made.ops[1:] if op.type in CLIPS], made.encoding)
        if bounds is None:
            return None
        as_float = not stored and is_read_in_float(graph, made.output)
        as_int8 = not as_float and is_int8(graph, made.output, made.encoding, propagated)
        return cls(made.encoding, bounds, as_float, as_int8, composed)

    @property
    def least_stored(self) -> int:
        """The lowest stored code; of a dequantized output, the one it would have if it were stored."""
        grid = Range.of(self.encoding)
        lift = int(self.encoding.zero_point) - grid.least
        return -lift if self.as_int8 or (self.as_float and lift == 128) else 0

    def shift(self, shift: Floats) -> Floats:
        """The shift that is added before rounding."""
        if not self.composed:
            return shift
        return drop_negligible(np.asarray(shift + _f32(self._low), _f32), Range.of(self.encoding).levels)

    def scale(self, scale: Floats, shift: Floats) -> Floats:
        """The scale that is multiplied by before rounding. If a scalar scale, without a shift or a clip, comes last in
        a kernel that returns codes, it is the scale of the kernel's destination, which is inverted twice."""
        last = self.composed and not self.as_float and self.bounds == BOUNDS[self.encoding.dtype]
        if not last or scale.size > 1 or shift.any():
            return scale
        return np.asarray(_f32(1) / np.asarray(_f32(1) / scale, _f32), _f32)

    def codes(self, values: Tensor) -> Tensor:
        """Rounds float32 values that were scaled and shifted, and clamps them."""
        return values.round().add_(BOUNDS[self.encoding.dtype][0] - self._low).clamp_(*self.bounds)

    @property
    def _low(self) -> int:
        """The offset that is added before rounding instead of after it."""
        if not self.composed:
            return 0
        grid = Range.of(self.encoding)
        if self.as_int8:
            return grid.least - int(self.encoding.zero_point)
        whole = grid.step == 1 and grid.low.is_integer()
        return int(grid.low) if self.as_float and whole else self.moved_low


def snippet(target: OutputRequantization, low: Floats, high: Floats) -> Callable[[Tensor], Tensor]:
    """Quantizes real numbers in a generated kernel: `rne(f32(f32(clip(x) * isc) + ish))` with `ish = f32(-il * isc)`,
    or `rne(f32(clip(x) * isc))` if the output is int8 with zero point 0."""
    grid = Range.of(target.encoding)
    scale = np.asarray(_f32(grid.levels) / np.asarray(high - low, _f32), _f32)
    shift, least = np.asarray(-low * scale, _f32), grid.least
    if target.as_int8 and bool((np.abs(shift - 128) < _ALIGNED).all()):
        shift, least = np.zeros_like(shift), int(target.encoding.zero_point)
    bounds = [torch.from_numpy(each) for each in (low, high)]
    by, add = torch.from_numpy(scale), torch.from_numpy(shift)

    def finish(values: Tensor) -> Tensor:
        return torch.clamp(values, *bounds).mul_(by).add_(add).round_().add_(least).clamp_(*target.bounds)

    return finish


def is_read_in_float(graph: Network, tensor: str) -> bool:
    """Whether no operation reads a tensor as codes: its quantization then returns real numbers."""
    made_by = graph.producer(tensor)
    kept = made_by is not None and preserved_grid(made_by) is not None
    return not kept and all(_reads_float(graph, op) for op, _ in graph.readers(tensor))


def _reads_float(graph: Network, op: Op) -> bool:
    if op.type in _READ_FLOAT or (op.type == "AveragePool" and op.attribute("ceil_mode")):
        return True
    factors = [read for read in op.inputs if op.type == "Mul" and graph.is_constant(read)]
    # One that is not positive cannot go into a range.
    return any(bool((np.asarray(constant_values(graph, read), _f32) <= 0).any()) for read in factors)

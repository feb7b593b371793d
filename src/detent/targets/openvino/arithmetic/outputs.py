"""Where an operation of OpenVINO leaves its codes, and what it multiplies with and adds before it rounds to them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from detent.ir import Encoding, Network, Op, Trait, constant_values, ops_with
from detent.ir.qparams import BOUNDS
from detent.targets.openvino.arithmetic.ranges import CLIPS, Carried, Floats, Range, kept_grid, without_nothing
from detent.targets.openvino.arithmetic.stored import is_int8
from detent.twin.lowering import Chain
from detent.twin.requantize import clamp_bounds

__all__ = ["OutputRequantization", "read_on_reals", "snippet"]

_f32 = np.float32
_ON_REALS = ops_with(Trait.ACTIVATION) - {"LeakyRelu"} | {"Max", "Min", "Softmax"}
_ALIGNED = 1e-4  # a shift of int8 that is less than this from 128 is left out


@dataclass(frozen=True)
class OutputRequantization:
    """Where an operation leaves its codes: the grid, and how the plugin stores them there.

    `given` says that it gives real numbers, to the network's user or to functions of them. Others are uint8, but for
    those with real zero in the middle that no convolution reads: these are stored as int8.

    What is stored is `rne(value) * step + low`. `composed` says that a convolution or a product of matrices makes it,
    which the plugin shortens: where the step is 1 and `low` an integer, `low` is added before rounding, and decides to
    which side a tie falls: -128 for int8, and the least real number of a given grid of step 1. `moved_low` is what an
    addition behind it makes of `low`. All other kernels compute the range as it is.
    """

    encoding: Encoding
    bounds: tuple[int, int]
    given: bool
    as_int8: bool
    composed: bool = True
    moved_low: int = 0

    @classmethod
    def of(
        cls, graph: Network, made: Chain, carried: Carried, *, stored: bool = False, composed: bool = True
    ) -> OutputRequantization | None:
        """Where a chain ends; with `stored` it is stored as codes even if the network gives it."""
        if made.encoding is None or not made.encoding.per_tensor:
            return None
        bounds = clamp_bounds(graph, [op for op in made.ops[1:] if op.type in CLIPS], made.encoding)
        if bounds is None:
            return None
        given = not stored and read_on_reals(graph, made.output)
        as_int8 = not given and is_int8(graph, made.output, made.encoding, carried)
        return cls(made.encoding, bounds, given, as_int8, composed)

    @property
    def least_stored(self) -> int:
        """The least code as it is stored; of real numbers that are given, what it would be stored as."""
        grid = Range.of(self.encoding)
        lift = int(self.encoding.zero_point) - grid.least
        return -lift if self.as_int8 or (self.given and lift == 128) else 0

    def shift(self, shift: Floats) -> Floats:
        """What is added before rounding."""
        if not self.composed:
            return shift
        return without_nothing(np.asarray(shift + _f32(self._low), _f32), Range.of(self.encoding).levels)

    def scale(self, scale: Floats, shift: Floats) -> Floats:
        """What is multiplied with. As the last thing of a kernel that gives codes, one scale without a shift and
        without a clip is the scale of the kernel's destination, which is inverted twice."""
        last = self.composed and not self.given and self.bounds == BOUNDS[self.encoding.dtype]
        if not last or scale.size > 1 or shift.any():
            return scale
        return np.asarray(_f32(1) / np.asarray(_f32(1) / scale, _f32), _f32)

    def codes(self, values: Tensor) -> Tensor:
        """From scaled and shifted float32 numbers."""
        return values.round().add_(BOUNDS[self.encoding.dtype][0] - self._low).clamp_(*self.bounds)

    @property
    def _low(self) -> int:
        """What is added before rounding in place of after it."""
        if not self.composed:
            return 0
        grid = Range.of(self.encoding)
        if self.as_int8:
            return grid.least - int(self.encoding.zero_point)
        whole = grid.step == 1 and grid.low.is_integer()
        return int(grid.low) if self.given and whole else self.moved_low


def snippet(target: OutputRequantization, low: Floats, high: Floats) -> Callable[[Tensor], Tensor]:
    """From real numbers to codes, for a range, by a kernel that the plugin generates:
    `rne(f32(f32(clip(x) * isc) + ish))` with `ish = f32(-il * isc)`, or `rne(f32(clip(x) * isc))` where int8 is stored
    and real zero is its zero."""
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


def read_on_reals(graph: Network, tensor: str) -> bool:
    """Whether nothing reads a tensor as codes: its grid gives real numbers then."""
    made_by = graph.producer(tensor)
    kept = made_by is not None and kept_grid(made_by) is not None
    return not kept and all(_on_reals(graph, op) for op, _ in graph.readers(tensor))


def _on_reals(graph: Network, op: Op) -> bool:
    if op.type in _ON_REALS or (op.type == "AveragePool" and op.attribute("ceil_mode")):
        return True
    factors = [read for read in op.inputs if op.type == "Mul" and graph.is_constant(read)]
    # One that is not positive cannot go into a range.
    return any(bool((np.asarray(constant_values(graph, read), _f32) <= 0).any()) for read in factors)

"""How OpenVINO stores codes (uint8 or int8), and the grid of one tensor in units of another's."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from detent.ir import Encoding, Network
from detent.targets.openvino.arithmetic.ranges import NO_SHIFT, Floats, PropagatedGrids, Range, preserved_grid
from detent.traversal import reachable

__all__ = ["RescaledGrid", "StoredCodes", "is_int8", "is_second_matmul_input", "range_of_stored"]

_f32 = np.float32


@dataclass(frozen=True)
class StoredCodes:
    """A quantized tensor as the plugin stores it: `code - offset`, with lowest code `least` and real zero at `zero`.
    The sign is -1 for a subtrahend."""

    grid: Range
    offset: int
    least: int
    zero: float
    sign: int = 1

    @classmethod
    def of(cls, graph: Network, tensor: str, encoding: Encoding, propagated: PropagatedGrids) -> StoredCodes:
        grid = Range.of(encoding)
        if is_int8(graph, tensor, encoding, propagated):
            return cls(grid, int(encoding.zero_point), grid.least - int(encoding.zero_point), 0.0)
        return cls(grid, grid.least, 0, grid.shift)

    @property
    def step(self) -> float:
        return self.sign * self.grid.step

    @property
    def unscaled(self) -> RescaledGrid:
        return RescaledGrid(self.grid, 0.0, 1.0, 1.0, float(self.least))

    def in_steps_of(self, other: StoredCodes) -> RescaledGrid:
        """The transformations fold both scales and both zeros of an addition into the range of this grid."""
        mine, its = _f32(self.step), _f32(other.step)
        zero = _f32(_f32(self.zero) + _f32(_f32(_f32(other.zero) * its) / mine))
        ratio = _f32(mine / its)
        low, high = (_f32(_f32(_f32(code) - zero) * ratio) for code in (self.least, self.least + self.grid.levels))
        step = _f32(_f32(high - low) / _f32(self.grid.levels))
        return RescaledGrid(self.grid, float(zero), float(ratio), float(step), float(low))


@dataclass(frozen=True)
class RescaledGrid:
    """A grid in units of another's step, minus the other's zero: `(stored - zero) * ratio`, or `code * step + low`."""

    grid: Range
    zero: float
    ratio: float
    step: float
    low: float

    def clamped(self, least: int, greatest: int) -> tuple[float, float, float, float]:
        """From real numbers to this grid, clamped to two of its codes (counted from 0) but not rounded: scale, shift,
        and the bounds."""
        low, step = _f32(self.low), _f32(self.step)
        scale = _f32(_f32(self.grid.scale) * step)
        shift = _f32(_f32(_f32(self.grid.shift) * step) + low)
        high = _f32(_f32(_f32(self.grid.levels) * step) + low)
        if abs(shift) < abs(high - low) * NO_SHIFT:
            shift = _f32(0)
        ends = [float(_f32(_f32(_f32(code) * step) + low)) for code in (least, greatest)]
        return float(scale), float(shift), min(ends), max(ends)


def range_of_stored(grid: Range, source: StoredCodes, factor: Floats | None = None) -> tuple[Floats, Floats]:
    """The bounds of a range of real numbers, for stored codes that are multiplied by `factor`."""
    unit = _f32(source.step) if factor is None else np.asarray(_f32(source.step) * factor, _f32)
    low, high = (np.asarray(_f32(bound) / unit, _f32) for bound in (grid.low, grid.high))
    return np.asarray(low + _f32(source.zero), _f32), np.asarray(high + _f32(source.zero), _f32)


def is_int8(graph: Network, tensor: str, encoding: Encoding, propagated: PropagatedGrids) -> bool:
    if encoding.dtype not in ("int8", "uint8") or int(encoding.zero_point) - Range.of(encoding).least != 128:
        return False
    return not _reaches_convolution(graph, tensor, propagated)


def is_second_matmul_input(graph: Network, tensor: str) -> bool:
    """Whether a tensor is the second input of a product of two activations, directly or after data movement. That input
    must be int8 and a convolution's uint8, so a tensor that both read stays float."""

    def moved(name: str) -> list[str]:
        return [made for op, _ in graph.readers(name) if preserved_grid(op) is not None for made in op.outputs]

    return any(
        op.type == "MatMul" and op.inputs[1] is not None and op.inputs[1].tensor == name
        for name in reachable([tensor], moved)
        for op, _ in graph.readers(name)
    )


def _reaches_convolution(graph: Network, tensor: str, propagated: PropagatedGrids) -> bool:
    """Whether a convolution, which takes uint8 only, reads a tensor, directly or after data movement."""

    def moved(name: str) -> list[str]:
        return [made for op, _ in graph.readers(name) for made in op.outputs if made in propagated]

    return any(op.type == "Conv" for name in reachable([tensor], moved) for op, _ in graph.readers(name))

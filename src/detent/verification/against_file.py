"""Compares simulation and file, operation by operation, in two halves that are judged separately.

- What an operation gives in real numbers, from the inputs that it had in the simulation: float32 sums in another order
  are the only thing that may differ (`roundoff`).
- What its quantizer makes of these real numbers: a division and a rounding, which have one result. Every code must be
  the one that the file gives for the same number, so that a wrong rounding, scale or zero point is seen at once.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import product
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from detent.ir import Encoding
from detent.ir.roundoff import UNIT
from detent.numerics import Rounding, round_to_integer
from detent.twin import OnnxSpec, Twin
from detent.verification.differences import Tally, absolute_difference
from detent.verification.ranges import Ranges
from detent.verification.simulation import Rounded, Simulated

__all__ = ["AgainstFile", "PlannedRounding"]

Array = npt.NDArray[Any]
Arrays = Mapping[str, Array]


class AgainstFile:
    """`file` computes as ONNX specifies; `manifest` gives the rounding of each tensor, which ONNX cannot express."""

    def __init__(self, file: Twin, manifest: Mapping[str, Any]):
        self.tally = Tally("simulation vs file")
        self._written = {name for op in file.graph.ops for name in op.outputs} | set(file.graph.inputs)
        self._roundings = {t["tensor"]: Rounding(t["scheme"]["rounding"]) for t in manifest["tensors"]}
        plain = set(self._roundings.values()) <= {Rounding.HALF_EVEN}
        self._twin = file if plain else Twin(file.graph, PlannedRounding(manifest["tensors"]))
        self._encodings: dict[str, list[Encoding]] = {}
        self.without_grid: list[str] = []

    def given(self, simulated: Simulated) -> dict[str, Array]:
        """What operations read in the simulation, as the file has it. `without_grid` are tensors that a
        quantizer stands behind, and that are float in the file."""
        lost = [name for name in simulated.rounded if name in self._written and not self._grids(name)]
        self.without_grid = lost
        return {**simulated.read, **{name: simulated.rounded[name][0].values for name in lost}}

    def add(self, inputs: Arrays, simulated: Simulated, given: Arrays) -> None:
        """One batch."""
        computed = self._twin.each_tensor(inputs, given, before_grids=simulated.reals)
        ranges = Ranges(self._twin, inputs, given)
        for name, ours in computed:
            if name not in simulated.reals:
                continue
            theirs, rounded = simulated.reals[name], simulated.rounded.get(name, [])
            if ours.size != theirs.size:
                self._real(name, ours, theirs, ranges)
                continue
            ours, within = self._as_read(name, ours.reshape(theirs.shape), ranges, inputs, simulated, given)
            if rounded and self._grids(name):
                self._on_grid(name, ours, rounded, within)
            else:
                self._real(name, ours, theirs, within)

    def _as_read(
        self, name: str, ours: Array, ranges: Ranges, inputs: Arrays, simulated: Simulated, given: Arrays
    ) -> tuple[Array, Ranges]:
        """The file's result for the inputs of the simulation. Some operations read a tensor on a grid that the file
        does not have, others as it is, and the file does not tell which. If no combination leads to the simulation's
        values, the result for the unquantized tensors."""
        theirs = simulated.reals[name]
        mixed = sorted(set(ranges.sources(name)) & simulated.coarse.keys())
        if not mixed or np.issubdtype(ours.dtype, np.integer) or not _beyond(ranges, name, ours, theirs).any():
            return ours, ranges
        for chosen in product(*([None, *simulated.coarse[tensor]] for tensor in mixed)):
            read = {tensor: value for tensor, value in zip(mixed, chosen, strict=True) if value is not None}
            fed = {tensor: read.get(tensor, value) for tensor, value in inputs.items()}
            others = Ranges(self._twin, fed, {**given, **read})
            found = others.real(name)
            assert found is not None  # an operation makes it
            other = found.value.numpy().reshape(theirs.shape)
            if not _beyond(others, name, other, theirs).any():
                return other, others
        return ours, ranges

    def _grids(self, name: str) -> list[Encoding]:
        if name not in self._encodings:
            self._encodings[name] = [grid for grid in self._twin.graph.encodings(name) if grid is not None]
        return self._encodings[name]

    def _real(self, name: str, ours: Array, theirs: Array, ranges: Ranges) -> None:
        self.tally.compare(name, theirs, ours, None, lambda: ~_beyond(ranges, name, ours, theirs.reshape(ours.shape)))

    def _on_grid(self, name: str, ours: Array, rounded: list[Rounded], ranges: Ranges) -> None:
        """Differing is a code, or a real number that no order of sums gives, even if its code is the same: but for what
        is less of a step than a quotient by the scale is rounded off by where codes change."""
        rounding = self._roundings.get(name, Rounding.HALF_EVEN)
        found = [self._grid_of(name, one, rounding) for one in rounded]
        impossible = np.logical_or.reduce([wrong for _, wrong in found])
        (grid, _), real, codes = found[0], rounded[0].real, rounded[0].codes
        distance = np.zeros(codes.shape)
        if impossible.any() or not np.array_equal(ours, real, equal_nan=True):
            distance = np.abs(_rounded(ours, grid, rounding) - codes).astype(np.float64)
            steps = absolute_difference(ours, real) / np.min(grid.scale)
            if ranges.rounds_inside(name):
                # The file has the grid further ahead, behind it operations that move: no real numbers to compare.
                bounds = ranges.codes(name, grid)
                assert bounds is not None  # an operation makes it
                least, greatest = (bound.reshape(codes.shape) for bound in bounds)
                beyond = (codes < least) | (codes > greatest)
            else:
                beyond = _beyond(ranges, name, ours, real) & (steps > UNIT)
            distance = np.where(beyond, np.maximum(distance, steps), distance)
            impossible = impossible | beyond
        self.tally.add(name, (distance > 0) | impossible, distance, "LSB", lambda: ~impossible)

    def _grid_of(self, name: str, one: Rounded, rounding: Rounding) -> tuple[Encoding, Array]:
        """The grid of the file that a quantizer stands for, and where it gave another code than the file would."""
        found = [(grid, _rounded(one.real, grid, rounding) != one.codes) for grid in self._grids(name)]
        return min(found, key=lambda pair: int(pair[1].sum()))


class PlannedRounding(OnnxSpec):
    """The arithmetic of ONNX, except for the roundings, which are those that the manifest gives to tensors on that
    grid: also where an operation reads real numbers that others read as they are."""

    def __init__(self, tensors: Iterable[Mapping[str, Any]]):
        self._roundings = {
            _key(tensor["scale"], tensor["zero_point"]): Rounding(tensor["scheme"]["rounding"]) for tensor in tensors
        }

    def quantize(self, values: Tensor, encoding: Encoding) -> Tensor:
        rounding = self._roundings.get(_key(encoding.scale, encoding.zero_point), Rounding.HALF_EVEN)
        given = values.numpy()
        codes, nearest = (_rounded(given, encoding, one) for one in (rounding, Rounding.HALF_EVEN))
        # What is on the grid already stays where it is, though the quotient may be a last bit below its code.
        again = encoding.dequantize(nearest) == given
        return torch.from_numpy(np.where(again, nearest, codes).astype(np.float32))


def _key(scale: Any, zero_point: Any) -> tuple[bytes, bytes]:
    return np.asarray(scale, np.float32).tobytes(), np.asarray(zero_point, np.int64).tobytes()


def _beyond(ranges: Ranges, name: str, ours: Array, theirs: Array) -> Array:
    found = ranges.real(name)
    error: Any = 0.0 if found is None or found.error is None else found.error.numpy().reshape(ours.shape)
    return np.asarray(absolute_difference(ours, theirs) > error)


def _rounded(values: Array, grid: Encoding, rounding: Rounding) -> npt.NDArray[np.int64]:
    """Divide in float32 as the simulation does, so that both have the same ties."""
    scale, zero_point = (grid.along(part, values.ndim, values.shape) for part in (grid.scale, grid.zero_point))
    with np.errstate(over="ignore", invalid="ignore"):
        steps = torch.from_numpy(np.asarray(values / np.asarray(scale, values.dtype)))
        codes = round_to_integer(steps, rounding).numpy().astype(np.float64) + zero_point
        return np.asarray(np.clip(codes, grid.qmin, grid.qmax), np.int64)

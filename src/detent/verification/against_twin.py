"""Compares simulation and twin, operation by operation: each starts from the simulation's values.

The twin rounds as its engine does, so that a code may be its neighbor. More than that is not rounding: the engine
computes another number there than was simulated (products that saturate in pairs, a bound cut to a whole code).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from detent.ir import Encoding
from detent.twin import Twin
from detent.verification.differences import Tally, absolute_difference, encoding_by_tensor
from detent.verification.ranges import Ranges
from detent.verification.simulation import Simulated

__all__ = ["AgainstTwin"]

Array = npt.NDArray[Any]
Arrays = Mapping[str, Array]


class AgainstTwin:
    """Codes may differ by 1, real numbers by what float32 arithmetic explains."""

    def __init__(self, twin: Twin):
        self.tally = Tally("simulation vs twin")
        self._twin, self._encodings = twin, encoding_by_tensor(twin.graph)

    def add(self, inputs: Arrays, simulated: Simulated, given: Arrays) -> None:
        """One batch; `given` is what operations read in the simulation."""
        computed = self._twin.each_tensor(inputs, given)
        ranges = Ranges(self._twin, inputs, given)
        for name, ours in computed:
            encoding, rounded = self._encodings.get(name), simulated.rounded.get(name)
            if np.issubdtype(ours.dtype, np.integer):
                if rounded and encoding is not None and rounded[0].codes.size == ours.size:
                    self._codes(name, ours, rounded[0].codes, encoding)
            elif name in simulated.reals and simulated.reals[name].size == ours.size:
                self._reals(name, ours, simulated.reals[name], ranges)

    def _codes(self, name: str, ours: Array, theirs: Array, encoding: Encoding) -> None:
        self.tally.compare(
            name, theirs, ours, encoding, lambda: np.abs(ours.reshape(theirs.shape).astype(np.int64) - theirs) <= 1
        )

    def _reals(self, name: str, ours: Array, theirs: Array, ranges: Ranges) -> None:
        def allowed() -> Array:
            found = ranges.real(name)
            if found is None or ranges.rounds_inside(name):
                return np.ones(ours.shape, bool)
            return np.asarray(
                absolute_difference(ours, theirs.reshape(ours.shape)) <= found.spread.numpy().reshape(ours.shape)
            )

        self.tally.compare(name, theirs.reshape(ours.shape), ours, None, allowed)

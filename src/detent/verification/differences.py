"""Compares two computations of the same tensors, in steps of their grids."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from detent.ir import Encoding, Network
from detent.verification.verdict import Difference

__all__ = ["Allowed", "Tally", "encoding_by_tensor"]

Array = npt.NDArray[Any]

Allowed = Callable[[], Array]
"""Where a difference is no defect: one truth value for each element. Asked for only if something differs."""

_FLOAT_TOLERANCE = 1e-5
"""Of the largest value, for outputs from end to end: what float32 sums in another order may add up to. It decides what
is counted, and nothing else."""


def encoding_by_tensor(graph: Network) -> dict[str, Encoding]:
    """The grid of every tensor that a reader quantizes."""
    found: dict[str, Encoding] = {}
    for op in graph.ops:
        for read in op.reads:
            if read.encoding is not None and read.tensor not in graph.coded:
                found.setdefault(read.tensor, read.encoding)
    for output in graph.outputs:
        if output.read.encoding is not None:
            found.setdefault(output.read.tensor, output.read.encoding)
    return found


def absolute_difference(ours: Array, theirs: Array) -> npt.NDArray[np.float64]:
    """The distance of real numbers. An infinity, as in a mask, equals only itself."""
    same = ours == theirs
    if same.all():
        return np.zeros(same.shape)
    with np.errstate(invalid="ignore"):
        distance = np.abs(np.subtract(ours, theirs, dtype=np.float64))
    strange = np.isnan(distance)
    if strange.any():
        distance[strange] = np.where(same[strange] | (np.isnan(ours) & np.isnan(theirs))[strange], 0.0, np.inf)
    return np.asarray(distance)


class Tally:
    """Accumulates differences over batches."""

    def __init__(self, what: str):
        self.what = what
        self._counts: dict[str, list[float]] = {}
        self._units: dict[str, str] = {}
        self._must_equal: dict[str, bool] = {}

    def compare(
        self, name: str, ours: Array, theirs: Array, encoding: Encoding | None, allowed: Allowed | None = None
    ) -> None:
        """One tensor of one batch; each side is codes (integers) or real numbers."""
        if ours.size != theirs.size:
            size = max(ours.size, theirs.size)
            self.add(name, np.ones(size, bool), np.full(size, np.inf), "LSB")
            return
        theirs = theirs.reshape(ours.shape)
        whole = [np.issubdtype(side.dtype, np.integer) for side in (ours, theirs)]
        if encoding is not None and all(whole) and np.array_equal(ours, theirs):
            self.add(name, np.zeros(ours.shape, bool), np.zeros(ours.shape), "LSB")
            return
        if encoding is not None and (encoding.per_tensor or all(whole)):
            steps = [
                side.astype(np.float64) if is_code else _in_steps(side, encoding)
                for side, is_code in zip((ours, theirs), whole, strict=True)
            ]
            distance = absolute_difference(*steps)
            # Half a step is where real numbers on a grid stop being the same number of it.
            self.add(name, distance >= 0.5, np.round(distance), "LSB", allowed)
            return
        distance = absolute_difference(ours, theirs) / _largest(theirs)
        if allowed is None:
            # A number that is rounded to 16 bits may be rounded to the next one.
            step = float(np.finfo(np.float16).eps) if np.float16 in (ours.dtype, theirs.dtype) else 0.0
            self.add(name, distance > max(_FLOAT_TOLERANCE, step), distance, "of the largest value")
        else:
            differ = distance > 0
            if differ.any():
                differ &= ~allowed()
            self.add(name, differ, distance, "of the largest value", lambda: ~differ)

    def add(self, name: str, differ: Array, distance: Array, unit: str, allowed: Allowed | None = None) -> None:
        """Count the differences, and those that are not `allowed`; without it none are counted as such."""
        count = int(differ.sum())
        refused = count if allowed is None or not count else int((differ & ~allowed()).sum())
        seen = self._counts.setdefault(name, [0, 0, 0.0, 0])
        seen[0] += differ.size
        seen[1] += count
        seen[2] = max(seen[2], float(distance[differ].max()) if count else 0.0)
        seen[3] += refused
        self._units[name] = unit
        self._must_equal[name] = self._must_equal.get(name, True) and allowed is None

    @property
    def impossible(self) -> bool:
        """Whether a difference was found that is a defect."""
        return any(refused for *_, refused in self._counts.values())

    @property
    def differences(self) -> tuple[Difference, ...]:
        return tuple(
            Difference(
                name,
                self.what,
                int(elements),
                int(differing),
                most,
                self._units[name],
                int(refused),
                self._must_equal[name],
            )
            for name, (elements, differing, most, refused) in self._counts.items()
        )


def _largest(values: Array) -> float:
    return float(np.abs(values[np.isfinite(values)]).max(initial=0.0)) or 1.0


def _in_steps(values: Array, encoding: Encoding) -> npt.NDArray[np.float64]:
    """Real numbers in steps of the grid, not rounded, and clipped to its ends."""
    steps = values.astype(np.float64) / np.float64(encoding.scale) + np.float64(encoding.zero_point)
    return np.asarray(np.clip(steps, encoding.qmin, encoding.qmax))

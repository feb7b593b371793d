"""Two computations of the same tensors, compared in steps of their grids."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from detent.deploy import Encoding, QdqGraph
from detent.verification.verdict import Difference

__all__ = ["Tally", "encoding_by_tensor"]

Array = npt.NDArray[Any]

_FLOAT_TOLERANCE = 1e-5
"""Of the largest value: what float32 sums in another order may differ by."""


def encoding_by_tensor(graph: QdqGraph) -> dict[str, Encoding]:
    """The grid of every tensor that some reader puts on one."""
    found: dict[str, Encoding] = {}
    for op in graph.ops:
        for read in op.inputs:
            if read is not None and read.encoding is not None and read.tensor not in graph.coded:
                found.setdefault(read.tensor, read.encoding)
    for output in graph.outputs:
        if output.read.encoding is not None:
            found.setdefault(output.read.tensor, output.read.encoding)
    return found


def _apart(ours: Array, theirs: Array) -> Array:
    """How far real numbers are apart, of the largest that is finite. An infinity, as of a mask, equals only itself."""
    finite = np.abs(theirs[np.isfinite(theirs)]).max(initial=0.0)
    with np.errstate(invalid="ignore"):
        apart = np.abs(ours - theirs)
    same = (ours == theirs) | (np.isnan(ours) & np.isnan(theirs))
    found: Array = np.where(same, 0.0, np.where(np.isnan(apart), np.inf, apart)) / (float(finite) or 1.0)
    return found


class Tally:
    """Adds up differences over batches."""

    def __init__(self, what: str):
        self.what = what
        self._counts: dict[str, list[float]] = {}
        self._units: dict[str, str] = {}

    def compare(self, name: str, ours: Array, theirs: Array, encoding: Encoding | None) -> None:
        """One tensor of one batch; either side may be codes (integers) or real numbers."""
        if ours.size != theirs.size:
            self._add(name, max(ours.size, theirs.size), max(ours.size, theirs.size), float("inf"), "LSB")
            return
        theirs = theirs.reshape(ours.shape)
        if encoding is not None and np.issubdtype(ours.dtype, np.integer) and np.array_equal(ours, theirs):
            self._add(name, ours.size, 0, 0.0, "LSB")
            return
        whole = [np.issubdtype(side.dtype, np.integer) for side in (ours, theirs)]
        if encoding is not None and encoding.per_tensor:
            steps = [
                side.astype(np.float64) if is_code else _in_steps(side, encoding)
                for side, is_code in zip((ours, theirs), whole, strict=True)
            ]
            apart = np.abs(steps[0] - steps[1])
            # Half a step is where real numbers on a grid stop being the same number of it.
            self._add(name, ours.size, int((apart >= 0.5).sum()), float(np.round(apart.max(initial=0.0))), "LSB")
            return
        relative = _apart(ours.astype(np.float64), theirs.astype(np.float64))
        self._add(
            name,
            ours.size,
            int((relative > _FLOAT_TOLERANCE).sum()),
            float(relative.max(initial=0.0)),
            "of the largest",
        )

    def compare_all(
        self, ours: Mapping[str, Array], theirs: Mapping[str, Array], encodings: Mapping[str, Encoding]
    ) -> None:
        """Every tensor that both have."""
        for name in ours:
            if name in theirs:
                self.compare(name, ours[name], theirs[name], encodings.get(name))

    def _add(self, name: str, elements: int, differing: int, most: float, unit: str) -> None:
        seen = self._counts.setdefault(name, [0, 0, 0.0])
        seen[0] += elements
        seen[1] += differing
        seen[2] = max(seen[2], most if differing else 0.0)
        self._units[name] = unit

    @property
    def differences(self) -> tuple[Difference, ...]:
        return tuple(
            Difference(name, self.what, int(elements), int(differing), most, self._units[name])
            for name, (elements, differing, most) in self._counts.items()
        )


def _in_steps(values: Array, encoding: Encoding) -> npt.NDArray[np.float64]:
    """Real numbers as codes, not rounded; those beyond the grid are at its ends."""
    steps = values.astype(np.float64) / np.float64(encoding.scale) + np.float64(encoding.zero_point)
    return np.asarray(np.clip(steps, encoding.qmin, encoding.qmax))

"""Outputs from end to end: simulation (or file), twin and engine in pairs, and how often each is right."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import comb
from typing import Any

import numpy as np
import numpy.typing as npt

from detent.ir import Encoding
from detent.verification.batches import require_classes
from detent.verification.differences import Tally
from detent.verification.verdict import Accuracy, Difference

__all__ = ["Ends"]

Array = npt.NDArray[Any]

_CHANCE = 1e-4
"""Answers that roundings flip are made right as often as wrong: a share less likely than this is no chance."""


class Ends:
    """`outputs` are their grids by name, `first` is who simulates: "simulation" or "file".

    Roundings that spread may change outputs, so that these counts alone are no problem, but for two that no rounding
    gives: numbers that are not finite on one side only, or not in the float network, and answers that become wrong far
    more often than right.
    """

    def __init__(self, first: str, outputs: Mapping[str, Encoding | None]):
        self._first, self._outputs = first, outputs
        self._tallies = [Tally(f"{one} vs {other}") for one, other in self._pairs]
        self._not_finite: dict[tuple[str, str], int] = {}
        self._lost: dict[str, int] = {}
        self._right: dict[str, list[bool]] = {}

    @property
    def _pairs(self) -> tuple[tuple[str, str], ...]:
        return (self._first, "twin"), ("twin", "engine"), (self._first, "engine")

    def add(self, results: Mapping[str, Mapping[str, Array]], labels: Array | None) -> None:
        """One batch: the outputs of each who computed it."""
        for tally, (one, other) in zip(self._tallies, self._pairs, strict=True):
            if one not in results or other not in results:
                continue
            for name, encoding in self._outputs.items():
                ours, theirs = results[one][name], results[other][name]
                tally.compare(name, ours, theirs, encoding)
                count = _unlike_in_kind(ours, theirs)
                self._not_finite[name, tally.what] = self._not_finite.get((name, tally.what), 0) + count
        for who, outputs in results.items() if labels is not None else ():
            assert labels is not None
            scores = next(iter(outputs.values())).reshape(len(labels), -1)
            require_classes(labels, scores.shape[1])
            self._right.setdefault(who, []).extend((scores.argmax(1) == labels.reshape(-1)).tolist())

    def compare_with_float(self, results: Mapping[str, Mapping[str, Array]], plain: Mapping[str, Array]) -> None:
        """Find values that are finite in the float network and on no side, such as the logarithm of a value rounded to
        zero."""
        for name in self._outputs:
            sides = [np.isfinite(outputs[name]) for outputs in results.values()]
            if any(side.shape != plain[name].shape for side in sides):
                continue
            lost = np.isfinite(plain[name]) & ~np.logical_or.reduce(sides)
            self._lost[name] = self._lost.get(name, 0) + int(lost.sum())

    @property
    def differences(self) -> tuple[Difference, ...]:
        return tuple(found for tally in self._tallies for found in tally.differences)

    @property
    def accuracy(self) -> Accuracy | None:
        if not self._right:
            return None
        shares = {who: 100 * float(np.mean(seen)) for who, seen in self._right.items()}
        return Accuracy(len(self._right["twin"]), shares.get(self._first), shares["twin"], shares.get("engine"))

    def problems(self) -> Iterator[str]:
        for (name, what), count in self._not_finite.items():
            if count:
                yield f"{name}: {what}: {count:,} numbers are infinite or NaN on one side only"
        for name, count in self._lost.items():
            if count:
                yield f"{name}: {count:,} numbers are infinite or NaN on every side, and finite in the float network"
        if "engine" in self._right:
            twin, engine = (np.array(self._right[who]) for who in ("twin", "engine"))
            lost, won = int((twin & ~engine).sum()), int((engine & ~twin).sum())
            if chance(lost, won) < _CHANCE:
                yield (
                    f"accuracy: twin vs engine: of {len(twin):,} samples {lost:,} are right in the twin only and "
                    f"{won:,} in the engine only: roundings alone would make as many right as wrong"
                )


def chance(lost: int, won: int) -> float:
    """How likely so uneven a split is if either is as likely (the sign test).

    >>> chance(1, 0), chance(10, 10), chance(0, 10)
    (1.0, 1.0, 0.001953125)
    """
    count, least = lost + won, min(lost, won)
    tail = sum(comb(count, each) for each in range(least + 1))
    return min(1.0, float(2 * tail / 2**count))


def _unlike_in_kind(ours: Array, theirs: Array) -> int:
    """Numbers of which one is finite and the other is not, or both are not in different ways."""
    if ours.size != theirs.size:
        return 0
    ours, theirs = (np.ravel(side).astype(np.float64) for side in (ours, theirs))
    strange = ~(np.isfinite(ours) & np.isfinite(theirs))
    ours, theirs = ours[strange], theirs[strange]
    return int((~((ours == theirs) | (np.isnan(ours) & np.isnan(theirs)))).sum())

"""The twin against the engine, operation by operation: each starts from the values that the engine had before it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from detent.deploy import Encoding
from detent.twin import Step, Twin
from detent.verification.differences import Allowed, Tally, apart, encoding_by_tensor
from detent.verification.ranges import Ranges
from detent.verification.roundoff import rounds

__all__ = ["AgainstEngine"]

Array = npt.NDArray[Any]
Arrays = Mapping[str, Array]


class AgainstEngine:
    """Codes must be equal where the arithmetic claims it. Elsewhere the engine may have what float32 arithmetic can
    give there in some order, or what a kernel that was fitted may be off by."""

    def __init__(self, twin: Twin):
        self.tally = Tally("twin vs engine")
        self._twin, self._encodings = twin, encoding_by_tensor(twin.graph)
        self._proven = twin.arithmetic.claim.startswith("equal")
        self._making: dict[str, list[Step]] = {}
        for step in twin.steps:
            for form in step.writes:
                self._making.setdefault(form.tensor, []).append(step)

    @property
    def claims_equality(self) -> bool:
        """From end to end: all of it runs on integers, as the arithmetic says."""
        return self._proven and all(_is_exact(step) for step in self._twin.steps)

    def add(self, inputs: Arrays, shown: Arrays, outputs: Sequence[tuple[str, Array]], own: Arrays) -> None:
        """One batch: tensors as the engine shows them, and those that it gives as outputs, perhaps some of the same.
        `own` are those of the twin, from the inputs on."""
        seen = dict(shown)
        for name, made in outputs:
            seen.setdefault(name, made)
        self._compare_all(inputs, seen, seen.items(), own if self._reads_the_same(own, seen) else None)
        self._compare_others(inputs, seen, [(name, made) for name, made in outputs if not self._same(name, made, seen)])

    def _compare_others(self, inputs: Arrays, seen: Arrays, outputs: Sequence[tuple[str, Array]]) -> None:
        """Outputs that are not what the engine showed of the same tensor. Showing may have changed what it computes by
        roundings, so that they are judged by the inputs alone; a fitted arithmetic says nothing of so long a way."""
        if outputs:
            self._compare_all(inputs, {} if self._proven else seen, outputs)

    def _reads_the_same(self, own: Arrays, seen: Arrays) -> bool:
        """Whether every operation reads the same in engine and twin, so that nothing need be computed again."""
        read = [name for name in seen if name in own and self._twin.rewritten.readers(name)]
        return bool(own) and all(
            _whole(seen[name]) and _whole(own[name]) and np.array_equal(seen[name], own[name]) for name in read
        )

    def _compare_all(
        self, inputs: Arrays, given: Arrays, wanted: Iterable[tuple[str, Array]], computed: Arrays | None = None
    ) -> None:
        wanted = list(wanted)
        if computed is None:
            # Where the engine shows real numbers they say more than the codes they would become.
            real = {name for name, made in wanted if not _whole(made)}
            computed = self._twin.tensors(inputs, given, before_grids=real)
        ranges = Ranges(self._twin, inputs, given)
        certain: dict[str, bool] = {}
        for name, theirs in wanted:
            if name not in computed:
                continue
            ours, encoding = computed[name], self._encodings.get(name)
            encoding = encoding if _whole(ours) or _whole(theirs) else None
            exact = self._proven and self._is_certain(name, given, certain)
            allowed: Allowed | None = partial(self._allowed, ranges, name, ours, theirs, encoding)
            if exact:
                allowed = None if encoding is not None else partial(np.zeros, ours.shape, bool)
            self.tally.compare(name, theirs, ours, encoding, allowed)

    def _same(self, name: str, made: Array, seen: Arrays) -> bool:
        """Codes on the grid of the tensor, if one of both is codes."""
        ours, theirs, encoding = made, seen[name], self._encodings.get(name)
        if encoding is not None and _whole(ours) != _whole(theirs):
            ours, theirs = (side if _whole(side) else np.asarray(encoding.quantize(side)) for side in (ours, theirs))
        return np.array_equal(np.ravel(ours), np.ravel(theirs), equal_nan=not _whole(ours))

    def _is_certain(self, tensor: str, seen: Arrays, known: dict[str, bool]) -> bool:
        """Whether integers alone lead to it from what the engine showed."""
        if tensor not in known:
            known[tensor] = True
            steps = self._making.get(tensor, [])
            reads = [read for step in steps for read in step.reads if read is not None and read.tensor != tensor]
            known[tensor] = all(_is_exact(step) for step in steps) and all(
                self._twin.is_given(read, seen) or self._is_certain(read.tensor, seen, known) for read in reads
            )
        return known[tensor]

    def _allowed(self, ranges: Ranges, name: str, ours: Array, theirs: Array, encoding: Encoding | None) -> Array:
        """Where both are results of the same real numbers. A twin that computes something else there on purpose has to
        be right about it."""
        sides, arithmetic = (ours, theirs.reshape(ours.shape)), self._twin.arithmetic
        if encoding is None:
            found = ranges.real(name)
            if found is None:
                return np.zeros(ours.shape, bool)
            value, error = (part.numpy().reshape(ours.shape) for part in (found.value, found.spread))
            close = apart(*sides) <= arithmetic.float_slack * _largest(value)
            return close | np.logical_and(*(apart(side, value) <= error for side in sides))
        codes = [side.astype(np.int64) if _whole(side) else encoding.quantize(side) for side in sides]
        off = max((step.off for step in self._making.get(name, [])), default=0.0)
        bounds = ranges.codes(name, encoding, off)
        fits = np.zeros(ours.shape, bool)
        if bounds is not None:
            least, greatest = (bound.reshape(ours.shape) for bound in bounds)
            fits = np.logical_and(*((least <= side) & (side <= greatest) for side in codes))
        if off >= 1 or arithmetic.float_slack:
            fits |= np.abs(codes[0] - codes[1]) <= 1
        return fits


def _is_exact(step: Step) -> bool:
    """Whether it gives codes, or moves them, as the engine does."""
    return not step.off and not (step.ran_as == "float" and any(rounds(op) for op in step.ops))


def _largest(values: Array) -> float:
    return float(np.abs(values[np.isfinite(values)]).max(initial=0.0))


def _whole(array: Array) -> bool:
    return np.issubdtype(array.dtype, np.integer)

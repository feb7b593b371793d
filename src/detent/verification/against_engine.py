"""Compares twin and engine, operation by operation: each starts from the engine's values."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from detent.ir import Encoding
from detent.ir.roundoff import UNIT, rounds
from detent.traversal import dependencies_first
from detent.twin import Step, Twin
from detent.verification.differences import Allowed, Tally, absolute_difference, encoding_by_tensor
from detent.verification.ranges import Ranges

__all__ = ["AgainstEngine"]

Array = npt.NDArray[Any]
Arrays = Mapping[str, Array]


_LAST_BITS = 4 * UNIT
"""Of the largest number: a product and a sum in float32, rounded once or twice, on either side."""


class AgainstEngine:
    """Codes must be equal where the arithmetic claims it. Elsewhere the engine may have what float32 arithmetic can
    give there in some order, or what a kernel that was fitted may be off by.

    An output that is not what the engine showed of the same tensor, or of an engine that shows nothing, is judged by
    the inputs alone. Bounds of a whole network soon allow everything, so they are used only for samples in which some
    code on the way lies so near a tie that float32 arithmetic leaves it open (`undecided`). In all others the engine
    must have the codes of the twin up to there, and an output is judged by these.
    """

    def __init__(self, twin: Twin):
        self.tally = Tally("twin vs engine")
        self._twin, self._encodings = twin, encoding_by_tensor(twin.graph)
        self._proven = twin.arithmetic.claim.startswith("equal")
        self.first_defect: tuple[Arrays, Arrays, Sequence[tuple[str, Array]]] | None = None
        """What `add` got of the first batch with a difference that is a defect."""
        self._making: dict[str, list[Step]] = {}
        for step in twin.steps:
            for operand in step.writes:
                self._making.setdefault(operand.tensor, []).append(step)
                self._keep_grid(step, operand.tensor)

    def _keep_grid(self, step: Step, made: str) -> None:
        """Moved codes stay on their grid, even to an output that the network returns as real numbers."""
        read = next((read for read in step.reads if read is not None), None)
        encoding = None if read is None else read.encoding or self._encodings.get(read.tensor)
        if step.ran_as == "moved" and encoding is not None and encoding.per_tensor:
            self._encodings.setdefault(made, encoding)

    @property
    def claims_equality(self) -> bool:
        """Whether equality is claimed end to end: everything runs on integers, and the arithmetic claims equality."""
        return self._proven and all(_is_exact(step) for step in self._twin.steps)

    def add(self, inputs: Arrays, shown: Arrays, outputs: Sequence[tuple[str, Array]], own: Arrays) -> None:
        """One batch: tensors as the engine shows them, and those that it gives as outputs, perhaps some of the same.
        `own` are those of the twin, from the inputs on, if they are known."""
        before = self.tally.impossible
        self._add(inputs, shown, outputs, own)
        if self.tally.impossible and not before:
            self.first_defect = inputs, shown, outputs

    def _add(self, inputs: Arrays, shown: Arrays, outputs: Sequence[tuple[str, Array]], own: Arrays) -> None:
        seen = dict(shown)
        for name, made in outputs:
            seen.setdefault(name, made)
        if shown:
            self._compare_all(inputs, seen, seen.items(), own if self._reads_the_same(own, seen) else None)
            outputs = [(name, made) for name, made in outputs if not self._same(name, made, seen)]
        if not outputs:
            return
        if shown and not self._proven:  # a fitted arithmetic says nothing of so long a way
            self._compare_all(inputs, seen, outputs)
        else:
            self._compare_from_inputs(inputs, outputs, own)

    def _compare_from_inputs(self, inputs: Arrays, outputs: Sequence[tuple[str, Array]], own: Arrays) -> None:
        own = own or self._twin.tensors(inputs)
        codes = {name: array for name, array in own.items() if _whole(array)}
        strict, wide = Ranges(self._twin, inputs, codes), Ranges(self._twin, inputs, {})
        certain: dict[str, bool] = {}
        # Real numbers from the engine are more precise than the codes they would become.
        computed = self._twin.tensors(inputs, {}, before_grids={name for name, made in outputs if not _whole(made)})
        open_ = None
        for name, theirs in outputs:
            ours = computed[name]
            encoding = self._grid_of(name, ours, theirs)
            if self._proven and self._is_certain(name, {}, certain):
                self.tally.compare(name, theirs, ours, encoding, _nothing(ours, encoding))
                continue
            if open_ is None:
                open_ = self._undecided(strict, codes, len(next(iter(inputs.values()))))
            allowed = partial(self._allowed_in, open_, wide, strict, name, ours, theirs, encoding)
            self.tally.compare(name, theirs, ours, encoding, allowed)

    def _undecided(self, ranges: Ranges, codes: Arrays, samples: int) -> Array:
        """Samples with a code that float32 arithmetic leaves open, given the twin's codes before it."""
        found = np.zeros(samples, bool)
        certain: dict[str, bool] = {}
        for name in codes:
            if self._proven and self._is_certain(name, codes, certain):
                continue
            bounds = ranges.codes(name, self._encodings[name], self._off(name)) if name in self._encodings else None
            if bounds is None:
                continue
            able = (bounds[0] < bounds[1]) | (self._off(name) >= 1)
            apart = able.ndim and len(able) == samples
            found |= able.reshape(samples, -1).any(1) if apart else able.any()
        return found

    def _allowed_in(
        self,
        undecided: Array,
        wide: Ranges,
        strict: Ranges,
        name: str,
        ours: Array,
        theirs: Array,
        encoding: Encoding | None,
    ) -> Array:
        near = self._allowed(strict, name, ours, theirs, encoding)
        if not undecided.any():
            return near
        far = self._allowed(wide, name, ours, theirs, encoding)
        if not (ours.ndim and len(ours) == len(undecided)):
            return far
        return np.where(undecided.reshape(-1, *(1,) * (ours.ndim - 1)), far, near)

    def _reads_the_same(self, own: Arrays, seen: Arrays) -> bool:
        """Whether every operation has the same inputs in engine and twin, so that nothing needs to be recomputed."""
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
            ours = computed[name]
            encoding = self._grid_of(name, ours, theirs)
            allowed: Allowed | None = partial(self._allowed, ranges, name, ours, theirs, encoding)
            if self._proven and self._is_certain(name, given, certain):
                allowed = _nothing(ours, encoding)
            self.tally.compare(name, theirs, ours, encoding, allowed)

    def _grid_of(self, name: str, ours: Array, theirs: Array) -> Encoding | None:
        """The grid on which both are compared; None for real numbers."""
        return self._encodings.get(name) if _whole(ours) or _whole(theirs) else None

    def _same(self, name: str, made: Array, seen: Arrays) -> bool:
        """Whether both are the same, as codes on the tensor's grid if one of them is codes."""
        ours, theirs, encoding = made, seen[name], self._encodings.get(name)
        if encoding is not None and _whole(ours) != _whole(theirs):
            ours, theirs = (side if _whole(side) else np.asarray(encoding.quantize(side)) for side in (ours, theirs))
        return np.array_equal(np.ravel(ours), np.ravel(theirs), equal_nan=not _whole(ours))

    def _is_certain(self, tensor: str, seen: Arrays, known: dict[str, bool]) -> bool:
        """Whether it is computed from the engine's values by integer operations only."""

        def hidden(name: str) -> list[str]:
            reads = [read for step in self._making.get(name, ()) for read in step.reads if read is not None]
            return [read.tensor for read in reads if read.tensor != name and not self._twin.is_given(read, seen)]

        for name in dependencies_first([tensor], lambda one: [each for each in hidden(one) if each not in known]):
            if name not in known:
                exact = all(_is_exact(step) for step in self._making.get(name, ()))
                known[name] = exact and all(known[each] for each in hidden(name))
        return known[tensor]

    def _off(self, name: str) -> float:
        return max((step.off for step in self._making.get(name, [])), default=0.0)

    def _allowed(self, ranges: Ranges, name: str, ours: Array, theirs: Array, encoding: Encoding | None) -> Array:
        """Where both are results of the same real numbers. A twin that computes something else there on purpose has to
        be right about it."""
        sides, arithmetic = (ours, theirs.reshape(ours.shape)), self._twin.arithmetic
        if encoding is None:
            found = ranges.real(name)
            if found is None:
                return np.zeros(ours.shape, bool)
            value, error = (part.numpy().reshape(ours.shape) for part in (found.value, found.spread))
            close = absolute_difference(*sides) <= max(arithmetic.float_slack, _LAST_BITS) * _largest(value)
            return close | np.logical_and(*(absolute_difference(side, value) <= error for side in sides))
        codes = [side.astype(np.int64) if _whole(side) else encoding.quantize(side) for side in sides]
        off = self._off(name)
        bounds = ranges.codes(name, encoding, off)
        fits = np.zeros(ours.shape, bool)
        if bounds is not None:
            least, greatest = (bound.reshape(ours.shape) for bound in bounds)
            fits = np.logical_and(*((least <= side) & (side <= greatest) for side in codes))
        if off >= 1:
            fits |= np.abs(codes[0] - codes[1]) <= 1
        return fits


def _nothing(ours: Array, encoding: Encoding | None) -> Allowed | None:
    """No difference is allowed; for real numbers, every difference counts."""
    return None if encoding is not None else partial(np.zeros, ours.shape, bool)


def _is_exact(step: Step) -> bool:
    """Whether its result is codes, computed or moved as in the engine."""
    return not step.off and not (step.ran_as == "float" and any(rounds(op) for op in step.ops))


def _largest(values: Array) -> float:
    return float(np.abs(values[np.isfinite(values)]).max(initial=0.0))


def _whole(array: Array) -> bool:
    return np.issubdtype(array.dtype, np.integer)

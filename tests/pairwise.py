"""Which rows of a product of parameters run by default: enough that any two values meet in one of them.

    @pytest.mark.pairwise
    @pytest.mark.parametrize("a", ...)
    @pytest.mark.parametrize("b", ...)
    @pytest.mark.parametrize("c", ...)

A fault that needs three values at once is rare, and the product of all is many times as long. The rows left out are
marked `full`: `make test-full` runs them too. `pairwise(goals=f)` is for parameters that are not independent columns:
`f(**parameters)` is what a row reaches, and the rows chosen reach all that any row does. `pairwise(always=[id, ...])`
names rows that run whatever they add. `pairwise(strength=1)` asks for every value, not for every pair: for columns that
have nothing to do with each other.

    @pytest.mark.by_default("residual_cnn", "transformer_block")

names values instead: of the rows, those that have one of them run, and the others are `full`, as more of the same.
`few(count)` leaves the choice open: so many of them, from one end of the list to the other.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Hashable, Iterable, Sequence
from itertools import combinations, groupby
from typing import Any

import pytest


def cover(rows: Sequence[Any], goals: Callable[[Any], Iterable[Hashable]], always: Iterable[int] = ()) -> set[int]:
    """Places of rows that reach every goal that any row reaches: those of `always`, and what a greedy search adds."""
    reached = [frozenset(goals(row)) for row in rows]
    chosen = set(always)
    missing = frozenset().union(*reached).difference(*(reached[place] for place in chosen))
    order = list(range(len(rows)))
    random.Random(0).shuffle(order)  # neighbors in a product have most of their values in common
    for gain in range(max(map(len, reached), default=0), 0, -1):
        for place in order:
            if len(reached[place] & missing) >= gain:
                chosen.add(place)
                missing -= reached[place]
    return chosen


def pairs_of(row: Iterable[Hashable]) -> Iterable[Hashable]:
    """Every two values of a row, with their columns."""
    return combinations(enumerate(row), 2)


def mark_full(items: Sequence[Any]) -> None:
    """Mark as `full` what `by_default`, `few` or `pairwise` does not choose; the rows of a test stand together."""
    for item in items:
        named = item.get_closest_marker("by_default")
        if named and not {item.callspec.id, *item.callspec._idlist} & set(named.args):
            item.add_marker("full")
    for mark, choose in (("few", _choose_few), ("pairwise", _choose_pairwise)):
        marked = [item for item in items if item.get_closest_marker(mark)]
        for _, group in groupby(marked, key=lambda item: item.nodeid.split("[")[0]):
            rows = list(group)
            chosen = choose(rows, rows[0].get_closest_marker(mark))
            for place, row in enumerate(rows):
                if place not in chosen:
                    row.add_marker("full")


def _choose_few(rows: list[Any], mark: pytest.Mark) -> set[int]:
    """Places that are as far apart as they can be, with both ends."""
    (count,) = mark.args
    return {round(number * (len(rows) - 1) / max(count - 1, 1)) for number in range(count)}


def _choose_pairwise(rows: list[Any], mark: pytest.Mark) -> set[int]:
    options = mark.kwargs
    goals = options.get("goals")
    strength = options.get("strength", 2)
    always = [place for place, row in enumerate(rows) if row.callspec.id in options.get("always", ())]

    def reached(row: Any) -> Iterable[Hashable]:
        # An id for each `parametrize` and each fixture with parameters: the columns. pytest has no public name for it.
        return goals(**row.callspec.params) if goals else combinations(enumerate(row.callspec._idlist), strength)

    return cover(rows, reached, always)

"""Which rows of a product of parameters run by default: enough that any two values meet in one of them.

    @pytest.mark.pairwise
    @pytest.mark.parametrize("a", ...)
    @pytest.mark.parametrize("b", ...)
    @pytest.mark.parametrize("c", ...)

A fault that needs three values at once is rare, and the product of all is many times as long. The rows left out are
marked `full`: `make test-full` runs them too. `pairwise(goals=f)` is for parameters that are not independent columns:
`f(**parameters)` is what a row reaches, and the rows chosen reach all that any row does. `pairwise(always=[id, ...])`
names rows that run whatever they add.
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


def mark_full(items: Sequence[pytest.Item]) -> None:
    """Mark as `full` what is not chosen of the tests with the mark `pairwise`, which stand together."""
    marked = [item for item in items if item.get_closest_marker("pairwise")]
    for _, rows in groupby(marked, key=lambda item: item.nodeid.split("[")[0]):
        _mark_rows(list(rows))


def _mark_rows(rows: list[Any]) -> None:
    options = rows[0].get_closest_marker("pairwise").kwargs
    goals = options.get("goals")
    always = [place for place, row in enumerate(rows) if row.callspec.id in options.get("always", ())]

    def reached(row: Any) -> Iterable[Hashable]:
        # An id for each `parametrize` and each fixture with parameters: the columns. pytest has no public name for it.
        return pairs_of(row.callspec._idlist) if goals is None else goals(**row.callspec.params)

    chosen = cover(rows, reached, always)
    for place, row in enumerate(rows):
        if place not in chosen:
            row.add_marker("full")

"""The x of each node of a layered drawing, after Brandes and Köpf (2001).

Nodes are chained to the median of their neighbors into straight vertical blocks, blocks are packed side by side, and
that is done four times: from above and from below, leaning to the left and to the right. A node stands between the two
middle ones of its four places.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from itertools import pairwise
from typing import TypeVar

from detent.traversal import dependencies_first

__all__ = ["coordinates"]

Key = TypeVar("Key", bound=Hashable)
Links = Mapping[Key, Sequence[Key]]


def coordinates(
    rows: Sequence[Sequence[Key]],
    down: Links[Key],
    up: Links[Key],
    apart: Callable[[Key, Key], float],
    is_bend: Callable[[Key], bool],
) -> dict[Key, float]:
    """The coordinate of each key. `rows` are in their order; `apart` is how far two neighbors in a row keep from one
    another at least.

    >>> rows = [["a"], ["b", "c"], ["d"]]
    >>> down, up = {"a": ["b", "c"], "b": ["d"], "c": ["d"]}, {"b": ["a"], "c": ["a"], "d": ["b", "c"]}
    >>> x = coordinates(rows, down, up, lambda one, other: 10.0, lambda key: False)
    >>> x["c"] - x["b"], x["a"] == x["d"] == (x["b"] + x["c"]) / 2
    (10.0, True)
    """
    crossed = _crossed(rows, down, is_bend)
    layouts = []
    for from_above in (True, False):
        ordered = list(rows) if from_above else list(reversed(rows))
        for leaning_left in (True, False):
            facing = ordered if leaning_left else [list(reversed(row)) for row in ordered]
            roots = _blocks(facing, up if from_above else down, crossed)
            x = _packed(facing, roots, apart)
            layouts.append(x if leaning_left else {key: -value for key, value in x.items()})
    return _balanced(layouts)


def _crossed(rows: Sequence[Sequence[Key]], down: Links[Key], is_bend: Callable[[Key], bool]) -> set[frozenset[Key]]:
    """The links that cross one between two bends of a long edge, which is to be straight."""
    found: set[frozenset[Key]] = set()
    for upper, lower in pairwise(rows):
        place = {key: index for index, key in enumerate(lower)}
        links = [(i, place[to], key, to) for i, key in enumerate(upper) for to in down.get(key, ())]
        inner = [link for link in links if is_bend(link[2]) and is_bend(link[3])]
        for i, j, key, to in links:
            if not (is_bend(key) and is_bend(to)) and any((i - k) * (j - m) < 0 for k, m, _, _ in inner):
                found.add(frozenset((key, to)))
    return found


def _blocks(rows: Sequence[Sequence[Key]], before: Links[Key], crossed: set[frozenset[Key]]) -> dict[Key, Key]:
    """The first of the block that each is in."""
    roots = {key: key for row in rows for key in row}
    taken: set[Key] = set()
    for upper, lower in pairwise(rows):
        place = {key: index for index, key in enumerate(upper)}
        last = -1
        for key in lower:
            near = sorted(before.get(key, ()), key=place.__getitem__)
            for middle in dict.fromkeys(((len(near) - 1) // 2, len(near) // 2)) if near else ():
                other = near[middle]
                if other not in taken and place[other] > last and frozenset((other, key)) not in crossed:
                    roots[key], last = roots[other], place[other]
                    taken.add(other)
                    break
    return roots


def _packed(
    rows: Sequence[Sequence[Key]], roots: Mapping[Key, Key], apart: Callable[[Key, Key], float]
) -> dict[Key, float]:
    """Blocks as far to the left as they can be, then each as far to the right as its neighbors leave room."""
    before: dict[Key, dict[Key, float]] = {root: {} for root in roots.values()}
    behind: dict[Key, dict[Key, float]] = {root: {} for root in roots.values()}
    for row in rows:
        for one, other in pairwise(row):
            left, right = roots[one], roots[other]
            room = max(apart(one, other), before[right].get(left, 0.0))
            before[right][left] = behind[left][right] = room
    order = list(dependencies_first(list(before), lambda root: list(before[root])))
    x: dict[Key, float] = {}
    for root in order:
        x[root] = max((x[other] + room for other, room in before[root].items()), default=0.0)
    for root in reversed(order):
        x[root] = max(x[root], min((x[other] - room for other, room in behind[root].items()), default=x[root]))
    return {key: x[root] for key, root in roots.items()}


def _balanced(layouts: Sequence[Mapping[Key, float]]) -> dict[Key, float]:
    """Those that lean left begin where the narrowest does, those that lean right end there."""
    narrowest = min(layouts, key=lambda x: max(x.values()) - min(x.values()))
    low, high = min(narrowest.values()), max(narrowest.values())
    moved = []
    for number, x in enumerate(layouts):
        shift = high - max(x.values()) if number % 2 else low - min(x.values())
        moved.append({key: value + shift for key, value in x.items()})
    found = {}
    for key in narrowest:
        four = sorted(x[key] for x in moved)
        found[key] = (four[1] + four[2]) / 2
    return found

"""The layout of a network's drawing: layers from top to bottom, wrapped into columns.

The method of Sugiyama, Tagawa and Toda (1981): longest paths make layers, long edges get a bend in each layer that they
pass, sweeps of barycenters order each layer, and `coordinates` makes chains straight. Edges from one node share their
bends. A long network then continues in a next column, where few edges are cut.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from detent.report.coordinates import coordinates

__all__ = ["HEIGHT", "WIDTH", "Drawing", "lay_out"]

WIDTH, HEIGHT = 178, 40  # of a node
_ROW, _BETWEEN, _BEND = 66, 24, 14
_GUTTER, _MARGIN = 56, 28
_SWEEPS = 12
_ASPECT = 1.5  # of the whole drawing
_FEWEST = 8  # layers in a column

Point = tuple[float, float]
Key = tuple[str, int]
"""A node, or a bend of its edges in a layer; the node itself is the one in its own layer."""
Links = Mapping[Key, list[Key]]
"""From each to those in the next layer, or in the one before."""


@dataclass
class Drawing:
    """The middle of each node, the size of all of it, each edge as an SVG path, and the rank of each node: which layer,
    and which place in it."""

    nodes: dict[str, Point] = field(default_factory=dict)
    ranks: dict[str, tuple[int, int]] = field(default_factory=dict)
    edges: dict[tuple[str, str], str] = field(default_factory=dict)
    width: float = 0.0
    height: float = 0.0


def lay_out(successors: Mapping[str, Sequence[str]]) -> Drawing:
    """The drawing of a graph without cycles, whose nodes come in an order in which they can run.

    >>> drawing = lay_out({"a": ["b", "c"], "b": ["d"], "c": ["d"], "d": []})
    >>> drawing.ranks["a"], drawing.ranks["d"], sorted(drawing.ranks[name] for name in "bc")
    ((0, 0), (2, 0), [(1, 0), (1, 1)])
    >>> drawing.nodes["a"][0] == drawing.nodes["d"][0]
    True
    """
    if not successors:
        return Drawing()
    layer = _layers(successors)
    rows, down, up = _with_bends(successors, layer)
    _order(rows, down, up)
    drawing = Drawing()
    places, links = _wrapped(rows, layer, down, up, drawing)
    for number, row in enumerate(rows):
        nodes = [key[0] for key in row if layer[key[0]] == number]
        drawing.ranks.update((name, (number, place)) for place, name in enumerate(nodes))
        drawing.nodes.update((name, places[name, number]) for name in nodes)
    for source, targets in successors.items():
        for target in dict.fromkeys(targets):
            keys = [(source, number) for number in range(layer[source], layer[target])] + [(target, layer[target])]
            drawing.edges[source, target] = _path(keys, places, links)
    return drawing


def _layers(successors: Mapping[str, Sequence[str]]) -> dict[str, int]:
    """By the longest path from the beginning; what begins a side branch stands right above what reads it first."""
    layer = dict.fromkeys(successors, 0)
    for name, targets in successors.items():
        for target in targets:
            layer[target] = max(layer[target], layer[name] + 1)
    read = {target for targets in successors.values() for target in targets}
    for name in reversed(list(successors)):
        if name not in read and successors[name]:
            layer[name] = min(layer[target] for target in successors[name]) - 1
    return layer


def _with_bends(
    successors: Mapping[str, Sequence[str]], layer: Mapping[str, int]
) -> tuple[list[list[Key]], dict[Key, list[Key]], dict[Key, list[Key]]]:
    """The layers with bends in them, and the links from each layer to the next and back."""
    rows: list[list[Key]] = [[] for _ in range(max(layer.values()) + 1)]
    down: dict[Key, list[Key]] = {}
    for name, number in layer.items():
        rows[number].append((name, number))
        last = max((layer[target] for target in successors[name]), default=number)
        for row in range(number + 1, last):
            rows[row].append((name, row))
            down.setdefault((name, row - 1), []).append((name, row))
        for target in dict.fromkeys(successors[name]):
            down.setdefault((name, layer[target] - 1), []).append((target, layer[target]))
    up: dict[Key, list[Key]] = {}
    for source, targets in down.items():
        for to in targets:
            up.setdefault(to, []).append(source)
    return rows, down, up


def _order(rows: list[list[Key]], down: Links, up: Links) -> None:
    """Sort each layer by the mean place of its neighbors, down and up in turns; keep what crosses least."""
    best, fewest = [list(row) for row in rows], _crossings(rows, down)
    for sweep in range(_SWEEPS):
        if not fewest:
            break
        neighbors, order = (up, range(1, len(rows))) if sweep % 2 == 0 else (down, range(len(rows) - 2, -1, -1))
        for number in order:
            beside = rows[number - 1 if sweep % 2 == 0 else number + 1]
            rows[number] = _by_neighbors(rows[number], beside, neighbors)
        crossings = _crossings(rows, down)
        if crossings < fewest:
            best, fewest = [list(row) for row in rows], crossings
    rows[:] = best


def _by_neighbors(row: list[Key], beside: list[Key], neighbors: Links) -> list[Key]:
    """One without neighbors keeps its place."""
    place = {key: index for index, key in enumerate(beside)}
    means: dict[Key, float] = {}
    for index, key in enumerate(row):
        found = [place[other] for other in neighbors.get(key, ())]
        means[key] = sum(found) / len(found) if found else index
    return sorted(row, key=means.__getitem__)


def _crossings(rows: list[list[Key]], down: Links) -> int:
    total = 0
    for upper, lower in itertools.pairwise(rows):
        place = {key: index for index, key in enumerate(lower)}
        ends = [end for key in upper for end in sorted(place[to] for to in down.get(key, ()))]
        total += sum(one > other for index, one in enumerate(ends) for other in ends[index + 1 :])
    return total


def _wrapped(
    rows: list[list[Key]], layer: Mapping[str, int], down: Links, up: Links, drawing: Drawing
) -> tuple[dict[Key, Point], dict[tuple[Key, Key], tuple[float, int]]]:
    """The points with the layers side by side in columns, and for each link from one column to the next the x between
    them and a number that tells it from its like; sets the size of the drawing."""

    def is_bend(key: Key) -> bool:
        return layer[key[0]] != key[1]

    def apart(one: Key, other: Key) -> float:
        half = [_BEND / 2 if is_bend(key) else WIDTH / 2 for key in (one, other)]
        return sum(half) + (_BEND if is_bend(one) and is_bend(other) else _BETWEEN)

    places: dict[Key, Point] = {}
    links: dict[tuple[Key, Key], tuple[float, int]] = {}
    left = float(_MARGIN)
    for start, end in _columns(rows, layer, down):
        x = coordinates(rows[start:end], _within(down, start, end), _within(up, start, end), apart, is_bend)
        least, most = min(x.values()), max(x.values())
        for number in range(start, end):
            y = _MARGIN + HEIGHT / 2 + (number - start) * _ROW
            places.update((key, (left + WIDTH / 2 + x[key] - least, y)) for key in rows[number])
            drawing.height = max(drawing.height, y + HEIGHT / 2 + _MARGIN)
        cut = [(key, to) for key in rows[start - 1] for to in down.get(key, ())] if start else []
        links.update((link, (left - _GUTTER / 2, number)) for number, link in enumerate(cut))
        left += most - least + WIDTH + _GUTTER
    drawing.width = left - _GUTTER + _MARGIN
    return places, links


def _within(links: Links, start: int, end: int) -> Links:
    """The links between layers of one column."""
    return {
        key: [to for to in targets if start <= to[1] < end] for key, targets in links.items() if start <= key[1] < end
    }


def _columns(rows: list[list[Key]], layer: Mapping[str, int], down: Links) -> list[tuple[int, int]]:
    """Spans of layers, about as many as make a drawing of the wanted shape, cut where the fewest edges pass."""
    widths = sorted(sum(WIDTH + _BETWEEN if layer[key[0]] == key[1] else _BEND for key in row) for row in rows)
    width = widths[len(widths) * 9 // 10] + _GUTTER  # what a column is as wide as, but for a few layers
    count = max(1, round(math.sqrt(_ASPECT * len(rows) * _ROW / width)))
    ideal = max(_FEWEST, math.ceil(len(rows) / count))
    found, start = [], 0
    while len(rows) - start > ideal * 1.35:
        near = range(start + math.ceil(ideal * 0.65), min(start + math.floor(ideal * 1.3) + 1, len(rows) - 2))
        cut = min(near, key=lambda at: (sum(len(down.get(key, ())) for key in rows[at - 1]), abs(at - start - ideal)))
        found.append((start, cut))
        start = cut
    return [*found, (start, len(rows))]


def _path(keys: list[Key], places: Mapping[Key, Point], links: Mapping[tuple[Key, Key], tuple[float, int]]) -> str:
    """An SVG path from the lower side of the first node to the upper side of the last. It changes its x between two
    layers only, and so touches no node."""
    x, y = places[keys[0]]
    parts = [f"M{x:.0f} {y + HEIGHT / 2:.0f}"]
    for before, key in itertools.pairwise(keys):
        to_x, to_y = places[key]
        if (before, key) in links:
            parts.append(_around((x, y), (to_x, to_y), *links[before, key]))
        elif abs(to_x - x) >= 1:
            start, end = y + HEIGHT / 2, to_y - HEIGHT / 2
            middle = (start + end) / 2
            parts.append(f"V{start:.0f}C{x:.0f} {middle:.0f} {to_x:.0f} {middle:.0f} {to_x:.0f} {end:.0f}")
        x, y = to_x, to_y
    return f"{''.join(parts)}V{y - HEIGHT / 2:.0f}"


def _around(at: Point, to: Point, between: float, number: int) -> str:
    """Down below the column, up between it and the next, and over to above the first layer there."""
    r, aside = 7, 6 * (number % 3)
    (x, y), (to_x, to_y), middle = at, to, between - 6 + aside
    bottom, top = y + HEIGHT / 2 + 10 + aside, to_y - HEIGHT / 2 - 10 - aside
    return (
        f"V{bottom - r:.0f}Q{x:.0f} {bottom:.0f} {x + r:.0f} {bottom:.0f}H{middle - r:.0f}"
        f"Q{middle:.0f} {bottom:.0f} {middle:.0f} {bottom - r:.0f}V{top + r:.0f}"
        f"Q{middle:.0f} {top:.0f} {middle + r:.0f} {top:.0f}H{to_x - r:.0f}"
        f"Q{to_x:.0f} {top:.0f} {to_x:.0f} {top + r:.0f}"
    )

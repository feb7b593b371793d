"""The drawing of graphs: layers, order, straight chains, columns."""

from __future__ import annotations

import re

import pytest

from detent.report.coordinates import coordinates
from detent.report.layout import HEIGHT, WIDTH, lay_out


def overlaps(drawing) -> list[tuple[str, str]]:
    held = sorted(drawing.nodes.items())
    return [
        (one, other)
        for index, (one, (x, y)) in enumerate(held)
        for other, (u, v) in held[index + 1 :]
        if abs(x - u) < WIDTH and abs(y - v) < HEIGHT
    ]


def test_a_chain_is_one_straight_line():
    drawing = lay_out({"a": ["b"], "b": ["c"], "c": []})
    assert {x for x, _ in drawing.nodes.values()} == {drawing.nodes["a"][0]}
    assert [drawing.nodes[name][1] for name in "abc"] == [48.0, 114.0, 180.0]
    assert drawing.edges["a", "b"] == "M117 68V94"


def test_a_long_edge_goes_beside_the_nodes_it_passes():
    drawing = lay_out({"a": ["b", "d"], "b": ["c"], "c": ["d"], "d": []})
    assert [drawing.ranks[name][0] for name in "abcd"] == [0, 1, 2, 3]
    assert drawing.nodes["b"][0] == drawing.nodes["c"][0]
    beside = next(float(x) for x in re.findall(r"C\d+ \d+ \d+ \d+ (\d+)", drawing.edges["a", "d"]))
    assert abs(beside - drawing.nodes["b"][0]) > WIDTH / 2


def test_branches_that_can_be_parted_do_not_cross():
    # As they are given they cross: a reads into d, b into c.
    drawing = lay_out({"a": ["d"], "b": ["c"], "c": ["e"], "d": ["e"], "e": []})
    order = {name: rank for name, (_, rank) in drawing.ranks.items()}
    assert (order["a"] < order["b"]) == (order["d"] < order["c"])


def test_an_input_of_a_late_operation_stands_right_above_it():
    drawing = lay_out({"x": ["a"], "late": ["c"], "a": ["b"], "b": ["c"], "c": []})
    assert drawing.ranks["late"][0] == drawing.ranks["b"][0]


@pytest.mark.parametrize("count", [1, 9, 40, 500])
def test_long_networks_are_wrapped_and_nothing_overlaps(count):
    skips = {n: n + 4 for n in range(0, count, 4)}
    drawing = lay_out({str(n): [str(m) for m in (n + 1, skips.get(n, count)) if m < count] for n in range(count)})
    assert not overlaps(drawing)
    assert len(drawing.nodes) == count
    columns = sum("H" in path for path in drawing.edges.values())
    assert bool(columns) == (count > 12)
    if count >= 40:
        assert 0.6 < drawing.width / drawing.height < 3
    for x, y in drawing.nodes.values():
        assert WIDTH / 2 <= x <= drawing.width - WIDTH / 2
        assert HEIGHT / 2 <= y <= drawing.height - HEIGHT / 2


def test_an_empty_graph_is_an_empty_drawing():
    assert lay_out({}).nodes == {}


def test_neighbors_keep_their_distance():
    rows = [["a"], ["b", "c", "d"]]
    x = coordinates(rows, {"a": ["b", "c", "d"]}, {"b": ["a"], "c": ["a"], "d": ["a"]}, lambda *_: 7.0, lambda _: False)
    assert x["c"] - x["b"] >= 7
    assert x["d"] - x["c"] >= 7
    assert x["a"] == x["c"]

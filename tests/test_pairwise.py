"""The rows that run by default have every pair of values, and the rest of the product is marked `full`."""

from itertools import combinations, product
from types import SimpleNamespace

import pytest

from tests.pairwise import cover, mark_full, pairs_of


def pairs(rows):
    return {pair for row in rows for pair in pairs_of(row)}


@pytest.mark.parametrize(
    ("sizes", "most"),
    [((3, 2), 6), ((2, 2, 2), 5), ((3, 3, 3), 13), ((13, 3, 2, 2, 8), 125), ((18, 4, 3, 3, 3), 85)],
    ids=str,
)
def test_every_pair_is_covered_by_few_rows(sizes, most):
    rows = list(product(*map(range, sizes)))
    chosen = [rows[place] for place in cover(rows, pairs_of)]
    assert pairs(chosen) == pairs(rows)
    assert len(pairs(rows)) == sum(a * b for a, b in combinations(sizes, 2))
    assert len(chosen) <= most


def test_pairs_that_no_row_has_are_not_asked_for():
    rows = [row for row in product(range(3), range(3), range(3)) if row[0] != row[1]]
    assert pairs(rows[place] for place in cover(rows, pairs_of)) == pairs(rows)


def test_the_same_rows_are_chosen_each_time():
    rows = list(product(range(5), range(4), range(3)))
    assert cover(rows, pairs_of) == cover(list(rows), pairs_of)


def test_goals_may_be_others_than_pairs():
    assert cover([1, 2, 3, 6], lambda number: [n for n in (2, 3) if number % n == 0]) == {3}
    assert cover([1, 5], lambda _: []) == set()


def test_rows_to_keep_are_kept_and_count():
    rows = list(product(range(3), range(3)))
    assert cover(rows, lambda row: [("first", row[0])], always=[0, 1]) >= {0, 1}
    assert len(cover(rows, lambda row: [("first", row[0])], always=[0, 1])) == 4  # 0 twice, 1 and 2


class Item:
    """What `mark_full` asks of a test."""

    def __init__(self, test, row, mark=None):
        self.nodeid = f"test_file.py::{test}[{'-'.join(map(str, row))}]"
        self.row, self.mark, self.full = row, mark, False
        self.callspec = SimpleNamespace(
            id="-".join(map(str, row)),
            _idlist=[str(value) for value in row],
            params={"a": row[0], "b": row[1], "c": row[2]},
        )

    def get_closest_marker(self, name):
        return self.mark if self.mark is not None and self.mark.name == name else None

    def add_marker(self, name):
        assert name == "full"
        self.full = True


def items_of(test, mark):
    return [Item(test, row, mark) for row in product(range(3), range(3), range(3))]


def run_by_default(items):
    return [item.row for item in items if not item.full]


def test_each_test_is_covered_by_itself():
    one, two, other = (items_of(test, pytest.mark.pairwise.mark) for test in ("one", "two", "other"))
    for item in other:
        item.mark = None
    mark_full([*one, *two, *other])
    for items in (one, two):
        assert pairs(run_by_default(items)) == pairs(item.row for item in items)
        assert 9 <= len(run_by_default(items)) <= 13
    assert len(run_by_default(other)) == 27


def test_goals_and_rows_named_by_their_id():
    items = items_of("one", pytest.mark.pairwise(goals=lambda a, b, c: [a * b * c], always=["0-0-0", "0-1-0"]).mark)
    mark_full(items)
    found = run_by_default(items)
    assert found[:2] == [(0, 0, 0), (0, 1, 0)]
    assert sorted(a * b * c for a, b, c in found[2:]) == [1, 2, 4, 8]


def test_every_value_or_those_that_are_named():
    one = items_of("one", pytest.mark.pairwise(strength=1).mark)
    two = items_of("two", pytest.mark.by_default("2").mark)
    three = items_of("three", pytest.mark.by_default("0-1-2").mark)
    mark_full([*one, *two, *three])
    assert [set(column) for column in zip(*run_by_default(one), strict=True)] == [{0, 1, 2}] * 3
    assert len(run_by_default(one)) == 3
    assert run_by_default(two) == [item.row for item in two if 2 in item.row]
    assert run_by_default(three) == [(0, 1, 2)]


@pytest.mark.parametrize(("count", "places"), [(1, [0]), (2, [0, 26]), (3, [0, 13, 26]), (27, list(range(27)))])
def test_a_few_from_one_end_to_the_other(count, places):
    items = items_of("one", pytest.mark.few(count).mark)
    mark_full(items)
    assert [place for place, item in enumerate(items) if not item.full] == places


@pytest.mark.pairwise
@pytest.mark.parametrize(("a", "twice"), [(value, 2 * value) for value in range(3)])
@pytest.mark.parametrize("b", range(3))
@pytest.mark.parametrize("c", range(3))
def test_pytest_has_seen_the_mark(a, twice, b, c, request):
    """By default some of the 27 rows run, and every pair is among them."""
    assert twice == 2 * a
    rows = [item for item in request.session.items if item.nodeid.split("[")[0] == request.node.nodeid.split("[")[0]]
    if len(rows) == 1 or request.config.option.keyword:
        return  # asked for by name
    found = [tuple(item.callspec.params[name] for name in "abc") for item in rows if "full" not in item.keywords]
    assert ((a, b, c) in found) == ("full" not in request.node.keywords)
    assert pairs(found) == pairs(product(range(3), range(3), range(3)))
    assert len(found) <= 13

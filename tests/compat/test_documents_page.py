"""The page of all items is the one that the tests give, and every item of every document has a test."""

from __future__ import annotations

import pytest

from tools import list_documents

ITEMS = {"000": 49, "001": 54, "002": 35, "003": 31, "004": 25}
"""How many things each document describes."""


def test_the_page_is_current() -> None:
    assert list_documents.PAGE.read_text(encoding="utf-8") == list_documents.page()


@pytest.mark.parametrize("number", ITEMS)
def test_every_item_has_a_test(number: str) -> None:
    found = [item for one in list_documents.items(number) for item in range(one.first, one.last + 1)]
    assert sorted(set(found)) == list(range(1, ITEMS[number] + 1))

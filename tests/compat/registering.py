"""What a document's code registers while it is read, kept for the tests of that document alone."""

from __future__ import annotations

from typing import Any

from detent.observers import OBSERVERS
from detent.quantizers import QUANTIZERS
from detent.targets import BACKENDS

__all__ = ["Registered"]

_TABLES: tuple[dict[str, Any], ...] = tuple(table._table for table in (BACKENDS, OBSERVERS, QUANTIZERS))


class Registered:
    """Made before the document's code; `withdraw` after it takes back what was added, `restore` adds it again."""

    def __init__(self) -> None:
        self._before = [set(table) for table in _TABLES]
        self._added: list[dict[str, Any]] = []

    def withdraw(self) -> None:
        self._added = [
            {name: table.pop(name) for name in set(table) - before}
            for table, before in zip(_TABLES, self._before, strict=True)
        ]

    def restore(self) -> None:
        for table, added in zip(_TABLES, self._added, strict=True):
            table.update(added)

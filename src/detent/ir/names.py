"""Unique tensor names."""

from __future__ import annotations

from collections.abc import Iterable

__all__ = ["TensorNames"]


class TensorNames:
    """Hands out names that no tensor of an ONNX graph has; `separator` stands before the number that tells them apart.
    Names that are given otherwise are added to `taken`.

    >>> names = TensorNames(["x"])
    >>> names.unique("x"), names.unique("x"), names.unique("y")
    ('x_1', 'x_2', 'y')
    """

    def __init__(self, taken: Iterable[str], separator: str = "_") -> None:
        self.taken, self._separator = set(taken), separator
        self._counts: dict[str, int] = {}

    def unique(self, name: str) -> str:
        found, count = name, self._counts.get(name, 0)
        while found in self.taken:
            count += 1
            found = f"{name}{self._separator}{count}"
        self._counts[name] = count
        self.taken.add(found)
        return found

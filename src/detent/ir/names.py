"""Tensor names: unique ones, and the suffix of a tensor that is clipped for its grid."""

from __future__ import annotations

from collections.abc import Iterable

__all__ = ["CLIPPED", "TensorNames"]

CLIPPED = "_clipped"
"""Ends the name of what a Clip gives that stands before a QuantizeLinear because fewer codes are used than the type
has (6 bits in an int8, or -127 to 127): whoever reads a deployed file makes it part of the grid."""


class TensorNames:
    """Hands out names that no tensor of an ONNX graph has.

    >>> names = TensorNames(["x"])
    >>> names.unique("x"), names.unique("x"), names.unique("y")
    ('x_1', 'x_2', 'y')
    """

    def __init__(self, taken: Iterable[str]) -> None:
        self._taken = set(taken)

    def unique(self, name: str) -> str:
        found, count = name, 0
        while found in self._taken:
            count += 1
            found = f"{name}_{count}"
        self._taken.add(found)
        return found

"""ONNX names are any text; names of fx nodes and of module attributes are Python identifiers."""

from __future__ import annotations

import keyword
import re
from collections.abc import Iterable

from torch import fx, nn

from detent.graph import RESERVED

__all__ = ["CLIPPED", "Names", "TensorNames", "identifier"]

CLIPPED = "_clipped"
"""Ends the name of what a Clip gives that stands before a QuantizeLinear because fewer codes are used than the type
has (6 bits in an int8, or -127 to 127): whoever reads a deployed file makes it part of the grid."""

_TAKEN = frozenset({*dir(fx.GraphModule), *vars(nn.Module()), *RESERVED, "graph", "meta", "self", "shape_env"})


def identifier(name: str) -> str:
    """`name` with every character that Python does not take replaced, and no name that a module or `forward` has.

    >>> identifier("/layer1/layer1.0/conv1/Conv_output_0"), identifier("12"), identifier("class")
    ('layer1_layer1_0_conv1_Conv_output_0', 'n12', 'class_')
    """
    text = re.sub(r"[^0-9a-zA-Z_]", "_", name).strip("_") or "unnamed"
    if text[0].isdigit():
        text = f"n{text}"
    return f"{text}_" if keyword.iskeyword(text) or text in _TAKEN else text


class Names:
    """Hands out identifiers, each once."""

    def __init__(self) -> None:
        self._taken: set[str] = set(_TAKEN)
        self._last: dict[str, int] = {}

    def unique(self, name: str) -> str:
        wanted = found = identifier(name)
        while found in self._taken:
            self._last[wanted] = self._last.get(wanted, 0) + 1
            found = f"{wanted}_{self._last[wanted]}"
        self._taken.add(found)
        return found


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

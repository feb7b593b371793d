"""ONNX names are any text; names of fx nodes and of module attributes are Python identifiers."""

from __future__ import annotations

import keyword
import re

from torch import fx, nn

from detent.graph import RESERVED

__all__ = ["Names", "identifier"]

# An input is an argument of the function that fx writes, in whose body these are the modules that it calls.
_OF_CODE = {"torch", "math", "inf", "nan", "NoneType", "device", "fx_pytree", "pytree", "operator", "builtins"}
_TAKEN = frozenset(
    {*dir(fx.GraphModule), *vars(nn.Module()), *RESERVED, *_OF_CODE, "graph", "meta", "self", "shape_env"}
)


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
    """Creates unique identifiers."""

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

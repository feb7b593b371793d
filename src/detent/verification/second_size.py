"""Verifies a network with free sizes on inputs of a second size."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from detent.ir import Port

__all__ = ["double_free_sizes"]

Array = npt.NDArray[Any]

_MOST_ELEMENTS = 2**22


def double_free_sizes(inputs: Mapping[str, Array], ports: Mapping[str, Port]) -> dict[str, Array] | None:
    """The first sample with every free size but the batch twice as large, repeated; None if no other size is free, or
    what is large already.

    >>> x = np.ones((4, 3, 5), np.float32)
    >>> double_free_sizes({"x": x}, {"x": Port("float32", ("n", 3, "w"))})["x"].shape
    (1, 3, 10)
    """
    leading = {port.shape[0] for port in ports.values() if port.shape and isinstance(port.shape[0], str)}
    made: dict[str, Array] = {}
    for name, port in ports.items():
        array = inputs[name]
        for axis, size in enumerate(port.shape):
            if size in leading:
                array = array.take([0], axis)
            elif isinstance(size, str):
                array = np.concatenate([array, array], axis)
        made[name] = array
    changed = any(isinstance(size, str) and size not in leading for port in ports.values() for size in port.shape)
    return made if changed and sum(array.size for array in made.values()) <= _MOST_ELEMENTS else None

"""Nested state (of optimizers, generators, averages) as plain JSON and a flat table of tensors, and back.

>>> plain, tensors = pack({"lr": 0.1, "state": {0: torch.ones(2)}, "betas": (0.9, 0.99)})
>>> sorted(tensors)
['state.0']
>>> unpack(plain, tensors)["betas"]
(0.9, 0.99)
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from detent.errors import ArtifactError

__all__ = ["pack", "unpack"]

# What JSON has no word for is an object with one of these as its only key.
_TENSOR, _ARRAY, _TUPLE, _DICT = "$tensor", "$array", "$tuple", "$dict"


def pack(value: Any) -> tuple[Any, dict[str, Tensor]]:
    """The part that JSON can express, and the tensors by their paths. Anything else is refused."""
    tensors: dict[str, Tensor] = {}
    return _pack(value, (), tensors), tensors


def unpack(plain: Any, tensors: Mapping[str, Tensor]) -> Any:
    """The inverse of `pack`: dictionaries keep the types of their keys, tuples stay tuples."""
    match plain:
        case {"$tensor": name}:
            return tensors[name]
        case {"$array": name}:
            return tensors[name].numpy()
        case {"$tuple": parts}:
            return tuple(unpack(part, tensors) for part in parts)
        case {"$dict": pairs}:
            return {unpack(key, tensors): unpack(part, tensors) for key, part in pairs}
        case list():
            return [unpack(part, tensors) for part in plain]
        case dict():
            return {key: unpack(part, tensors) for key, part in plain.items()}
        case _:
            return plain


def _pack(value: Any, path: tuple[str, ...], tensors: dict[str, Tensor]) -> Any:
    match value:
        case None | bool() | str():
            return value
        case int() | float():
            return value
        case Tensor():
            name = ".".join(path)
            # A copy of its own: safetensors refuses tensors that share memory.
            tensors[name] = value.detach().cpu().clone().contiguous()
            return {_TENSOR: name}
        case np.ndarray():
            name = ".".join(path)
            tensors[name] = torch.from_numpy(value.copy())
            return {_ARRAY: name}
        case tuple():
            return {_TUPLE: [_pack(part, (*path, str(i)), tensors) for i, part in enumerate(value)]}
        case list():
            return [_pack(part, (*path, str(i)), tensors) for i, part in enumerate(value)]
        case Mapping():
            if all(isinstance(key, str) and not key.startswith("$") for key in value):
                return {key: _pack(part, (*path, key), tensors) for key, part in value.items()}
            return {
                _DICT: [[_pack(key, path, {}), _pack(part, (*path, str(key)), tensors)] for key, part in value.items()]
            }
    raise ArtifactError(
        f"keep {'.'.join(path) or 'a value'} in a checkpoint",
        f"it is a {type(value).__name__}, which no file holds without running code",
        "keep tensors, arrays, numbers, text, lists, tuples and dictionaries",
    )

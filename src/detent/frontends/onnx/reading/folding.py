"""Limits constant folding in the importer, so that a small file cannot use up all memory."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from detent.frontends.onnx.onnx_function import OnnxFunction
from detent.frontends.onnx.reading.sizes import TooLargeError, limited_to
from detent.graph import flat

__all__ = ["Budget"]

_LARGEST = 2**24  # elements; a result larger than this and than all its inputs is computed at run time
_SMALL = 1024  # elements; shapes and the like, which are always worth folding
_LEAST_BUDGET = 2**26  # elements in all

_BROADCASTING: frozenset[Callable[..., Any]] = frozenset(
    {
        torch.add, torch.sub, torch.mul, torch.div, torch.pow, torch.fmod, torch.remainder, torch.maximum,
        torch.minimum, torch.where, torch.logical_and, torch.logical_or, torch.logical_xor, torch.bitwise_and,
        torch.bitwise_or, torch.bitwise_xor, operator.eq, operator.lt, operator.le, operator.gt, operator.ge,
    }
)  # fmt: skip
_BROADCASTING_OPS = frozenset({"divide", "power", "prelu", "shift"})
_GROWING_OPS = frozenset({"gemm", "lstm", "gru", "rnn"})
_GROWING = frozenset({"pad", "interpolate"})  # of torch, by name: each has aliases


class Budget:
    """Elements that may still be made; it grows with the weights that the file itself holds."""

    def __init__(self) -> None:
        self._left = _LEAST_BUDGET

    def add(self, weights: int) -> None:
        self._left += 4 * weights

    def compute(self, function: Callable[..., Any], tensors: Sequence[Tensor], run: Callable[[], Any]) -> Any:
        """The result of `run`, which calls `function` with `tensors`; None if it is better left for later."""
        if self._left <= 0 or _grows(function, tensors):
            return None
        try:
            with torch.no_grad(), limited_to(max(min(_LARGEST, self._left), _SMALL)):
                result = run()
        except TooLargeError:
            return None
        made = sum(part.numel() for part in flat(result) if isinstance(part, Tensor) and part.numel() > _SMALL)
        self._left -= made
        return result


def _grows(function: Callable[..., Any], tensors: Sequence[Tensor]) -> bool:
    """Whether the result may be much larger than what it is made from. Operations that are told their size refuse an
    absurd one themselves."""
    given = sum(tensor.numel() for tensor in tensors)
    name = function.function.__name__ if isinstance(function, OnnxFunction) else getattr(function, "__name__", "")
    if isinstance(function, OnnxFunction):
        if name in _GROWING_OPS:
            return given > _SMALL
        if name not in _BROADCASTING_OPS:
            return False
    elif len(tensors) < 2:
        return name in _GROWING
    elif function is torch.cat:
        return given > _LARGEST
    elif function not in _BROADCASTING:
        return function is not torch.matmul or given > _SMALL
    common = torch.broadcast_shapes(*(tuple(tensor.shape) for tensor in tensors))  # type: ignore[no-untyped-call]
    return bool(math.prod(common) > max(_LARGEST, *(tensor.numel() for tensor in tensors)))

"""Tensors filled with one value, or with a range of values."""

from __future__ import annotations

from typing import Any

from detent.frontends.torch.builder import Builder, Read
from detent.frontends.torch.ops_elementwise import operand
from detent.frontends.torch.ops_shape import sizes_of
from detent.frontends.torch.values import Ref

__all__ = ["arange", "filled", "full", "full_like", "like", "new_filled", "new_full"]


def filled(value: float) -> Any:
    """`torch.zeros(2, n)`, `torch.ones((2, n))`: of a size that depends on the batch."""

    def emit(b: Builder, *sizes: Any, **named: Any) -> Ref:
        return full(b, named.get("size", sizes), value)

    return emit


def full(b: Builder, size: Any, fill_value: Any, **_: Any) -> Ref:
    wanted = size[0] if len(size) == 1 and isinstance(size[0], (list, tuple)) else size
    return b.final("Expand", [_number(b, fill_value), sizes_of(b, wanted)])


def like(value: float) -> Any:
    """`torch.zeros_like(x)`."""

    def emit(b: Builder, input: Ref, **_: Any) -> Ref:
        return full_like(b, input, value)

    return emit


def full_like(b: Builder, input: Ref, fill_value: Any, **_: Any) -> Ref:
    return b.final("Expand", [_number(b, fill_value), b.emit("Shape", [input])])


def new_filled(value: float) -> Any:
    """`x.new_zeros(2, n)`."""
    emit = filled(value)
    return lambda b, _, *sizes, **named: emit(b, *sizes, **named)


def new_full(b: Builder, _: Ref, size: Any, fill_value: Any, **__: Any) -> Ref:
    return full(b, size, fill_value)


def arange(b: Builder, start: Any, end: Any = None, step: Any = 1, **_: Any) -> Ref:
    """`torch.arange(n)`, where n depends on the batch."""
    first, last = (0, start) if end is None else (start, end)
    return b.final("Range", [operand(b, value, b.result.dtype) for value in (first, last, step)])


def _number(b: Builder, value: Any) -> Read:
    return operand(b, value, b.result.dtype)

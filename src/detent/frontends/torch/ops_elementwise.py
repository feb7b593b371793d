"""Arithmetic between tensors, comparisons, elementwise functions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from detent.errors import DeployError
from detent.frontends.torch.builder import ONNX_TYPES, Builder, Read
from detent.frontends.torch.values import Free, Ref

__all__ = [
    "add",
    "binary",
    "cast",
    "compare",
    "div",
    "floor_divide",
    "identity",
    "logical",
    "masked_fill",
    "operand",
    "pow_",
    "remainder",
    "rsqrt",
    "sub",
    "triangle",
    "type_as",
    "unary",
    "where",
]

Number = float | int


def operand(b: Builder, value: Ref | Free | Number, dtype: torch.dtype) -> Read:
    """A tensor as it is, a number as a constant of the type of the other side; mixed types meet in `dtype`."""
    if isinstance(value, Ref):
        return value if value.dtype == dtype else b.emit("Cast", [value], to=ONNX_TYPES[dtype])
    if isinstance(value, Free):
        name = b.emit("Squeeze", [value.name])
        return name if dtype == torch.int64 else b.emit("Cast", [name], to=ONNX_TYPES[dtype])
    return b.constant(torch.tensor(value, dtype=dtype))


def binary(op: str) -> Callable[..., Any]:
    """An operation on two tensors, or a tensor and a number."""

    def emit(b: Builder, input: Any, other: Any, **_: Any) -> Any:
        if not isinstance(b.result, Ref):  # sizes: computed as integers
            return Free(b.emit(op, [_size(b, input), _size(b, other)]))
        dtype = b.result.dtype
        return b.final(op, [operand(b, input, dtype), operand(b, other, dtype)])

    return emit


def div(b: Builder, input: Any, other: Any, *, rounding_mode: str | None = None) -> Any:
    """`/`, and `torch.div` that rounds down or towards zero."""
    if rounding_mode == "floor":
        return floor_divide(b, input, other)
    if rounding_mode is None or not isinstance(b.result, Ref) or not b.result.dtype.is_floating_point:
        return binary("Div")(b, input, other)  # ONNX divides integers towards zero
    dtype = b.result.dtype
    quotient = b.emit("Div", [operand(b, input, dtype), operand(b, other, dtype)])
    whole = b.emit("Floor", [b.emit("Abs", [quotient])])
    return b.final("Mul", [b.emit("Sign", [quotient]), whole])


def floor_divide(b: Builder, input: Any, other: Any) -> Any:
    """`//`: of sizes, or of real numbers; ONNX divides negative integers toward zero."""
    if not isinstance(b.result, Ref):
        return binary("Div")(b, input, other)
    dtype = b.result.dtype
    x, divisor = operand(b, input, dtype), operand(b, other, dtype)
    if not dtype.is_floating_point:  # without its remainder, which has the sign of the divisor
        return b.final("Div", [b.emit("Sub", [x, b.emit("Mod", [x, divisor])]), divisor])
    return b.final("Floor", [b.emit("Div", [x, divisor])])


def remainder(b: Builder, input: Any, other: Any) -> Any:
    """`%`, which has the sign of the divisor. ONNX's Mod has it of integers alone."""
    if not isinstance(b.result, Ref):
        return binary("Mod")(b, input, other)
    dtype = b.result.dtype
    x, divisor = operand(b, input, dtype), operand(b, other, dtype)
    if not dtype.is_floating_point:
        return b.final("Mod", [x, divisor])
    whole = b.emit("Mul", [b.emit("Floor", [b.emit("Div", [x, divisor])]), divisor])
    return b.final("Sub", [x, whole])


def _size(b: Builder, value: Any) -> str:
    return value.name if isinstance(value, Free) else b.integers([int(value)])


def _scaled(b: Builder, other: Any, alpha: Number, dtype: torch.dtype) -> Read:
    read = operand(b, other, dtype)
    return read if alpha == 1 else b.emit("Mul", [read, b.constant(torch.tensor(alpha, dtype=dtype))])


def add(b: Builder, input: Any, other: Any, *, alpha: Number = 1) -> Any:
    if isinstance(input, tuple) and isinstance(other, tuple):
        return (*input, *other)  # sizes, `x.size()[:-1] + (n,)`
    if not isinstance(b.result, Ref):
        return binary("Add")(b, input, other)
    dtype = b.result.dtype
    return b.final("Add", [operand(b, input, dtype), _scaled(b, other, alpha, dtype)])


def sub(b: Builder, input: Any, other: Any, *, alpha: Number = 1) -> Any:
    if not isinstance(b.result, Ref):
        return binary("Sub")(b, input, other)
    dtype = b.result.dtype
    return b.final("Sub", [operand(b, input, dtype), _scaled(b, other, alpha, dtype)])


def compare(op: str, *, negated: bool = False) -> Callable[..., Ref]:
    def emit(b: Builder, input: Any, other: Any) -> Ref:
        dtype = input.dtype if isinstance(input, Ref) else other.dtype
        reads = [operand(b, input, dtype), operand(b, other, dtype)]
        return b.final("Not", [b.emit(op, reads)]) if negated else b.final(op, reads)

    return emit


def logical(op: str) -> Callable[..., Ref]:
    """`&`, `|`, `~` of masks. Integers, whose bits they combine, have operations of their own from opset 18 on."""

    def emit(b: Builder, *inputs: Any) -> Ref:
        dtype = b.result.dtype
        if dtype != torch.bool and b.opset < 18:
            raise DeployError(f"write {b.current!r}", "it combines the bits of integers", "compare, and combine masks")
        reads = [operand(b, each, dtype) for each in inputs]
        return b.final(op if dtype == torch.bool else f"Bitwise{op}", reads)

    return emit


def where(b: Builder, condition: Ref, input: Any = None, other: Any = None) -> Ref:
    if other is None:
        raise DeployError(
            f"write {b.current!r}",
            "it lists places: how many there are depends on the data",
            "use masks in their place",
        )
    dtype = b.result.dtype
    return b.final("Where", [condition, operand(b, input, dtype), operand(b, other, dtype)])


def masked_fill(b: Builder, input: Ref, mask: Ref, value: Any) -> Ref:
    return b.final("Where", [mask, operand(b, value, input.dtype), input])


def triangle(*, upper: bool) -> Callable[..., Ref]:
    """`torch.triu`, `torch.tril`: zeros on the other side of a diagonal."""

    def emit(b: Builder, input: Ref, diagonal: int = 0) -> Ref:
        rows, columns = input.shape[-2:]
        if isinstance(rows, str) or isinstance(columns, str):
            raise DeployError(f"write {b.current!r}", "the sizes of its matrices are free", "give them fixed sizes")
        ones = np.ones((rows, columns), np.bool_)
        kept = np.triu(ones, diagonal) if upper else np.tril(ones, diagonal)
        return b.final("Where", [b.constant(kept), input, operand(b, 0, input.dtype)])

    return emit


def unary(op: str, **attributes: Any) -> Callable[..., Ref]:
    """A function of one tensor; what else it is given says how torch computes it, not what."""

    def emit(b: Builder, input: Ref, *_: Any, **__: Any) -> Ref:
        return b.final(op, [input], **attributes)

    return emit


def identity(b: Builder, input: Any, *_: Any, **__: Any) -> Any:
    """Nothing to write: the tensor itself."""
    del b
    return input


def rsqrt(b: Builder, input: Ref) -> Ref:
    return b.final("Reciprocal", [b.emit("Sqrt", [input])])


def pow_(b: Builder, input: Any, exponent: Any) -> Any:
    if not isinstance(input, Ref):
        return b.final("Pow", [operand(b, input, b.result.dtype), exponent])
    if exponent == 2:
        return b.final("Mul", [input, input])
    return b.final("Pow", [input, operand(b, exponent, input.dtype)])


def cast(b: Builder, input: Ref, *args: Any, **kwargs: Any) -> Ref:
    """`.to`, `.float`, `.long`: what type comes out is known from the example."""
    del args, kwargs
    return input if b.result.dtype == input.dtype else b.final("Cast", [input], to=ONNX_TYPES[b.result.dtype])


def type_as(b: Builder, input: Ref, other: Ref) -> Ref:
    return cast(b, input, other)

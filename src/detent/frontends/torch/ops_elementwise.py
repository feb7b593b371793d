"""Arithmetic between tensors, activation functions, elementwise functions."""

from __future__ import annotations

import math
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
    "clip",
    "compare",
    "elu",
    "floor_divide",
    "gelu",
    "hardsigmoid",
    "hardtanh",
    "identity",
    "leaky_relu",
    "log_softmax",
    "logical",
    "masked_fill",
    "mish",
    "operand",
    "pow_",
    "prelu",
    "relu6",
    "remainder",
    "rrelu",
    "rsqrt",
    "silu",
    "softmax",
    "softmax2d",
    "softplus",
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

    def emit(b: Builder, input: Any, other: Any, **options: Any) -> Any:
        if options.get("rounding_mode") is not None:
            raise DeployError(f"write {b.current!r}", "a division that rounds", "round it yourself")
        if not isinstance(b.result, Ref):  # sizes: computed as integers
            return Free(b.emit(op, [_size(b, input), _size(b, other)]))
        dtype = b.result.dtype
        return b.final(op, [operand(b, input, dtype), operand(b, other, dtype)])

    return emit


def floor_divide(b: Builder, input: Any, other: Any) -> Any:
    """`//`: of sizes, or of real numbers; ONNX divides negative integers towards zero."""
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


def where(b: Builder, condition: Ref, input: Any, other: Any) -> Ref:
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


def relu6(b: Builder, input: Ref, inplace: bool = False) -> Ref:
    return hardtanh(b, input, 0.0, 6.0, inplace)


def hardtanh(b: Builder, input: Ref, min_val: Number = -1.0, max_val: Number = 1.0, inplace: bool = False) -> Ref:
    del inplace
    return clip(b, input, min_val, max_val)


def clip(b: Builder, input: Ref, min: Any = None, max: Any = None) -> Ref:
    if isinstance(min, Ref) or isinstance(max, Ref):
        x: Read = input
        if min is not None:
            x = b.emit("Max", [x, operand(b, min, input.dtype)])
        return b.final("Min", [x, operand(b, max, input.dtype)]) if max is not None else b.final("Identity", [x])
    limits = [None if limit is None else b.constant(torch.tensor(limit, dtype=input.dtype)) for limit in (min, max)]
    return b.final("Clip", [input, *limits])


def leaky_relu(b: Builder, input: Ref, negative_slope: float = 0.01, inplace: bool = False) -> Ref:
    del inplace
    return b.final("LeakyRelu", [input], alpha=float(negative_slope))


def rrelu(b: Builder, input: Ref, lower: float = 1 / 8, upper: float = 1 / 3, *_: Any, **__: Any) -> Ref:
    """The slope is the mean of those that training draws."""
    return leaky_relu(b, input, (lower + upper) / 2)


def prelu(b: Builder, input: Ref, weight: Ref) -> Ref:
    if weight.shape == (1,) or input.ndim < 2:
        return b.final("PRelu", [input, weight])
    slope = b.emit("Reshape", [weight, b.integers([-1, *[1] * (input.ndim - 2)])])
    return b.final("PRelu", [input, slope])


def elu(b: Builder, input: Ref, alpha: float = 1.0, inplace: bool = False) -> Ref:
    del inplace
    return b.final("Elu", [input], alpha=float(alpha))


def hardsigmoid(b: Builder, input: Ref, inplace: bool = False) -> Ref:
    del inplace
    return b.final("HardSigmoid", [input], alpha=1 / 6, beta=0.5)


def silu(b: Builder, input: Ref, inplace: bool = False) -> Ref:
    del inplace
    return b.final("Mul", [input, b.emit("Sigmoid", [input])])


def mish(b: Builder, input: Ref, inplace: bool = False) -> Ref:
    del inplace
    return b.final("Mul", [input, b.emit("Tanh", [b.emit("Softplus", [input])])])


def softplus(b: Builder, input: Ref, beta: float = 1.0, threshold: float = 20.0) -> Ref:
    del threshold  # where the function is the identity to float32 accuracy
    if beta == 1:
        return b.final("Softplus", [input])
    factor = b.constant(torch.tensor(beta, dtype=input.dtype))
    return b.final("Div", [b.emit("Softplus", [b.emit("Mul", [input, factor])]), factor])


def gelu(b: Builder, input: Ref, approximate: str = "none") -> Ref:
    if b.opset >= 20:
        return b.final("Gelu", [input], approximate=approximate)

    def number(value: float) -> str:
        return b.constant(torch.tensor(value, dtype=input.dtype))

    if approximate == "tanh":
        cube = b.emit("Mul", [b.emit("Mul", [b.emit("Mul", [input, input]), input]), number(0.044715)])
        inner = b.emit("Tanh", [b.emit("Mul", [b.emit("Add", [input, cube]), number(math.sqrt(2 / math.pi))])])
    else:
        inner = b.emit("Erf", [b.emit("Div", [input, number(math.sqrt(2))])])
    return b.final("Mul", [b.emit("Mul", [input, b.emit("Add", [inner, number(1.0)])]), number(0.5)])


def softmax(b: Builder, input: Ref, dim: int | None = None, *_: Any, **__: Any) -> Ref:
    return b.final("Softmax", [input], axis=_softmax_axis(input, dim))


def softmax2d(b: Builder, input: Ref) -> Ref:
    return softmax(b, input, -3)


def log_softmax(b: Builder, input: Ref, dim: int | None = None, *_: Any, **__: Any) -> Ref:
    return b.final("LogSoftmax", [input], axis=_softmax_axis(input, dim))


def _softmax_axis(x: Ref, dim: int | None) -> int:
    """Without one, torch takes the axis that was the classes' in its early days."""
    if dim is not None:
        return x.axis(dim)
    return 0 if x.ndim in (0, 1, 3) else 1


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

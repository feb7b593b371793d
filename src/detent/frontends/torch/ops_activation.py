"""Activation functions, and softmax."""

from __future__ import annotations

from typing import Any

import torch

from detent.frontends.torch.builder import Builder, Read
from detent.frontends.torch.ops_elementwise import operand
from detent.frontends.torch.values import Ref

__all__ = [
    "clip",
    "elu",
    "gelu",
    "hardshrink",
    "hardsigmoid",
    "hardtanh",
    "leaky_relu",
    "log_softmax",
    "mish",
    "prelu",
    "relu6",
    "rrelu",
    "silu",
    "softmax",
    "softmax2d",
    "softplus",
    "softshrink",
]


def relu6(b: Builder, input: Ref, inplace: bool = False) -> Ref:
    return hardtanh(b, input, 0.0, 6.0, inplace)


def hardtanh(b: Builder, input: Ref, min_val: float = -1.0, max_val: float = 1.0, inplace: bool = False) -> Ref:
    del inplace
    return clip(b, input, min_val, max_val)


def clip(b: Builder, input: Ref, min: Any = None, max: Any = None) -> Ref:
    dtype = b.result.dtype  # of whole numbers that a real one bounds, real
    x: Read = operand(b, input, dtype)
    if isinstance(min, Ref) or isinstance(max, Ref):
        if min is not None:
            x = b.emit("Max", [x, operand(b, min, dtype)])
        return b.final("Min", [x, operand(b, max, dtype)]) if max is not None else b.final("Identity", [x])
    limits = [None if limit is None else b.constant(torch.tensor(limit, dtype=dtype)) for limit in (min, max)]
    return b.final("Clip", [x, *limits])


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
    return b.final("Swish", [input])


def hardshrink(b: Builder, input: Ref, lambd: float = 0.5) -> Ref:
    return b.final("Shrink", [input], lambd=lambd, bias=0.0)


def softshrink(b: Builder, input: Ref, lambd: float = 0.5) -> Ref:
    return b.final("Shrink", [input], lambd=lambd, bias=lambd)


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
    return b.final("Gelu", [input], approximate=approximate)


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

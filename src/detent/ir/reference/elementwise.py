"""Elementwise operators: arithmetic, comparisons, activation functions, casts."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
import torch.nn.functional as F
from torch import Tensor

from detent.ir.reference.call import Kernel, KernelCall

__all__ = ["ELEMENTWISE", "UNARY", "divide", "hard_sigmoid", "prelu", "shrink", "swish"]


def divide(a: Tensor, b: Tensor) -> Tensor:
    """Integers, such as sizes, are divided toward zero; the least one by -1 is itself, as negation wraps around.

    A CPU ends the process at that one quotient, which no integer type holds, so nothing is divided by -1.
    """
    if a.is_floating_point():
        return a / b
    minus = b == -1
    return torch.where(minus, -a, torch.div(a, torch.where(minus, 1, b), rounding_mode="trunc"))


UNARY: Mapping[str, Callable[[Tensor], Tensor]] = {
    "Abs": torch.abs,
    "Ceil": torch.ceil,
    "Cos": torch.cos,
    "Erf": torch.erf,
    "Exp": torch.exp,
    "Floor": torch.floor,
    "Identity": lambda x: x,
    "Log": torch.log,
    "Mish": F.mish,
    "Neg": torch.neg,
    "Not": torch.logical_not,
    "Reciprocal": torch.reciprocal,
    "Relu": torch.relu,
    "Round": torch.round,
    "Selu": F.selu,
    "Sigmoid": torch.sigmoid,
    "Sign": torch.sign,
    "Sin": torch.sin,
    "Softplus": F.softplus,
    "Softsign": F.softsign,
    "Sqrt": torch.sqrt,
    "Tanh": torch.tanh,
}
"""Functions of one tensor without attributes; the importer converts to the same."""

_BINARY: Mapping[str, Callable[[Tensor, Tensor], Tensor]] = {
    "Add": torch.add,
    "And": torch.logical_and,
    "Div": divide,
    "Equal": torch.eq,
    "Greater": torch.gt,
    "GreaterOrEqual": torch.ge,
    "Less": torch.lt,
    "LessOrEqual": torch.le,
    "Mul": torch.mul,
    "Or": torch.logical_or,
    "Pow": torch.pow,
    "Sub": torch.sub,
}


def _unary(function: Callable[[Tensor], Tensor]) -> Kernel:
    return lambda call: function(call[0])


def _binary(function: Callable[[Tensor, Tensor], Tensor]) -> Kernel:
    return lambda call: function(call[0], call[1])


def _with_attributes(function: Callable[..., Tensor], *names: str) -> Kernel:
    return lambda call: function(call[0], **{name: float(call.attribute(name)) for name in names})


def _clip(call: KernelCall) -> Tensor:
    x, low, high = call[0], call.number(1, "min"), call.number(2, "max")
    if low is None and high is None:
        return x
    if low is not None and high is not None and low <= high and x.is_floating_point():
        return F.hardtanh(x, low, high)  # a clamp, which ExecuTorch fuses into the operation before it
    return x.clamp(low, high)


def hard_sigmoid(x: Tensor, *, alpha: float, beta: float) -> Tensor:
    return (x * alpha + beta).clamp(0.0, 1.0)


def _hard_swish(call: KernelCall) -> Tensor:
    return call[0] * (call[0] * (1 / 6) + 0.5).clamp(0.0, 1.0)


def prelu(x: Tensor, slope: Tensor) -> Tensor:
    return torch.where(x < 0, x * slope, x)


def shrink(x: Tensor, *, bias: float, lambd: float) -> Tensor:
    inside = torch.zeros_like(x)
    return torch.where(x < -lambd, x + bias, torch.where(x > lambd, x - bias, inside)).to(x.dtype)


def swish(x: Tensor, *, alpha: float) -> Tensor:
    return x * torch.sigmoid(x * alpha)


_DTYPES = {
    1: torch.float32,
    2: torch.uint8,
    3: torch.int8,
    5: torch.int16,
    6: torch.int32,
    7: torch.int64,
    9: torch.bool,
    10: torch.float16,
    11: torch.float64,
}
"""By their numbers in ONNX."""


def _cast(call: KernelCall) -> Tensor:
    to = int(call.attribute("to"))
    if to not in _DTYPES:
        raise call.refusal(f"it casts to the ONNX type {to}")
    return call[0].to(_DTYPES[to])


def _dropout(call: KernelCall) -> Tensor | tuple[Tensor, ...]:
    """When a network is used: nothing is dropped."""
    return call[0] if call.outputs == 1 else (call[0], torch.ones_like(call[0], dtype=torch.bool))


ELEMENTWISE: Mapping[str, Kernel] = {
    **{name: _unary(function) for name, function in UNARY.items()},
    **{name: _binary(function) for name, function in _BINARY.items()},
    "Cast": _cast,
    "Celu": lambda call: F.celu(call[0], call.attribute("alpha")),
    "Clip": _clip,
    "Dropout": _dropout,
    "Elu": lambda call: F.elu(call[0], call.attribute("alpha")),
    "Gelu": lambda call: F.gelu(call[0], approximate=call.attribute("approximate")),
    "HardSigmoid": _with_attributes(hard_sigmoid, "alpha", "beta"),
    "HardSwish": _hard_swish,
    "LeakyRelu": lambda call: F.leaky_relu(call[0], call.attribute("alpha")),
    "PRelu": _binary(prelu),
    "Shrink": _with_attributes(shrink, "bias", "lambd"),
    "Swish": _with_attributes(swish, "alpha"),
    "Where": lambda call: torch.where(call[0], call[1], call[2]),
}

"""ONNX operations on each element that are one function of torch, for those who run a network with torch and for the
twin."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
import torch.nn.functional as F
from torch import Tensor

__all__ = ["BINARY", "UNARY"]

UNARY: Mapping[str, Callable[[Tensor], Tensor]] = {
    "Abs": torch.abs,
    "Ceil": torch.ceil,
    "Cos": torch.cos,
    "Erf": torch.erf,
    "Exp": torch.exp,
    "Floor": torch.floor,
    "Log": torch.log,
    "Mish": F.mish,
    "Neg": torch.neg,
    "Reciprocal": torch.reciprocal,
    "Relu": torch.relu,
    "Round": torch.round,
    "Selu": F.selu,
    "Sigmoid": torch.sigmoid,
    "Sin": torch.sin,
    "Softplus": F.softplus,
    "Softsign": F.softsign,
    "Sqrt": torch.sqrt,
    "Tanh": torch.tanh,
}


def _divide(a: Tensor, b: Tensor) -> Tensor:
    """Integers, such as sizes, are divided towards zero."""
    return a / b if a.is_floating_point() else torch.div(a, b, rounding_mode="trunc")


BINARY: Mapping[str, Callable[[Tensor, Tensor], Tensor]] = {
    "Add": torch.add,
    "Div": _divide,
    "Equal": torch.eq,
    "MatMul": torch.matmul,
    "Mul": torch.mul,
    "Pow": torch.pow,
    "Sub": torch.sub,
}
"""`MatMul` is not on each element, but is one function all the same."""

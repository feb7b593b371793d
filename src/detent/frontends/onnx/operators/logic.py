"""Comparisons, boolean operations, and selection."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from detent.frontends.onnx.call import Call, Converter
from detent.frontends.onnx.operators.arithmetic import operands

__all__ = ["CONVERTERS"]


def _compare(function: Callable[..., Any]) -> Converter:
    return lambda call: call.apply(function, *operands(call))


def _boolean(function: Callable[..., Any]) -> Converter:
    return lambda call: call.apply(function, *call.given())


def _where(call: Call) -> Any:
    return call.apply(torch.where, call.value(0), call.value(1), call.value(2))


def _infinite(call: Call) -> Any:
    negative, positive = bool(call.integer("detect_negative")), bool(call.integer("detect_positive"))
    return call.op(is_infinite, call.value(0), negative=negative, positive=positive)


def is_infinite(values: Tensor, *, negative: bool, positive: bool) -> Tensor:
    found = torch.zeros_like(values, dtype=torch.bool)
    if negative:
        found = found | torch.isneginf(values)
    return found | torch.isposinf(values) if positive else found


CONVERTERS: dict[str, Converter] = {
    "Equal": _compare(operator.eq),
    "Less": _compare(operator.lt),
    "LessOrEqual": _compare(operator.le),
    "Greater": _compare(operator.gt),
    "GreaterOrEqual": _compare(operator.ge),
    "And": _boolean(torch.logical_and),
    "Or": _boolean(torch.logical_or),
    "Xor": _boolean(torch.logical_xor),
    "IsNaN": _boolean(torch.isnan),
    "IsInf": _infinite,
    "Where": _where,
}

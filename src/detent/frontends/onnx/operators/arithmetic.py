"""Elementwise arithmetic."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from detent.frontends.onnx.builder import Constant, Value
from detent.frontends.onnx.call import Call, Converter
from detent.frontends.onnx.canonicalize.decomposed import layer_norm, rms_norm
from detent.ir.reference.elementwise import UNARY, divide

__all__ = ["CONVERTERS", "operands", "unary"]


def operands(call: Call) -> tuple[Any, Any]:
    """The two inputs; a 0-d constant beside a computed tensor is a Python number, as it would be in torch code."""
    left, right = call.value(0), call.value(1)
    return _plain(left, right), _plain(right, left)


def _plain(value: Value, other: Value) -> Any:
    scalar = isinstance(value, Constant) and value.tensor.ndim == 0 and not isinstance(other, Constant)
    return value.tensor.item() if scalar and isinstance(value, Constant) else value


def unary(function: Callable[..., Any]) -> Converter:
    return lambda call: call.apply(function, call.value(0))


def _binary(function: Callable[..., Any]) -> Converter:
    def convert(call: Call) -> Any:
        left, right = operands(call)
        if not isinstance(left, (Constant, torch.fx.Node)):
            left = call.value(0)  # torch functions want a tensor first
        return call.apply(function, left, right)

    return convert


def _commutative(function: Callable[..., Any]) -> Converter:
    """A number goes second, where torch takes one."""

    def convert(call: Call) -> Any:
        left, right = operands(call)
        tensor_first = isinstance(left, (Constant, torch.fx.Node))
        return call.apply(function, left, right) if tensor_first else call.apply(function, right, left)

    return convert


def _divide(call: Call) -> Any:
    norm = layer_norm(call) or rms_norm(call)
    if norm is not None:
        return norm
    if call.is_real():
        return _binary(torch.div)(call)
    return call.op(divide, call.value(0), call.value(1), kind="div")


def _multiply(call: Call) -> Any:
    return rms_norm(call) or _commutative(torch.mul)(call)


def _power(call: Call) -> Any:
    if call.is_real(0) and call.dtype(0) == call.dtype(1):
        return _binary(torch.pow)(call)
    return call.op(power, call.value(0), call.value(1), kind="pow")


def power(base: Tensor, exponent: Tensor) -> Tensor:
    """The result has the type of the base."""
    if not base.is_floating_point() and (exponent.is_floating_point() or bool((exponent < 0).any())):
        return torch.pow(base.double(), exponent.double()).to(base.dtype)
    return torch.pow(base, exponent.to(base.dtype)).to(base.dtype)


def _modulo(call: Call) -> Any:
    return call.apply(torch.fmod if call.integer("fmod") else torch.remainder, call.value(0), call.value(1))


def _chain(function: Callable[..., Any]) -> Converter:
    """An operation of any number of tensors, by pairs."""

    def convert(call: Call) -> Any:
        first, *others = call.given()
        result: Any = first
        for index, other in enumerate(others):
            last = index == len(others) - 1
            result = call.apply(function, result, other, step="" if last else f"upto_{index + 2}")
        return result

    return convert


def _mean(call: Call) -> Any:
    first, *others = call.given()
    result: Any = first
    for index, other in enumerate(others):
        result = call.apply(torch.add, result, other, step=f"upto_{index + 2}")
    return call.apply(torch.div, result, len(others) + 1)


def _shift(call: Call) -> Any:
    direction = call.text("direction")
    if direction not in ("LEFT", "RIGHT"):
        call.refuse(f"the direction {direction!r}", "export the model again")
    return call.op(shift, call.value(0), call.value(1), left=direction == "LEFT")


def shift(values: Tensor, by: Tensor, *, left: bool) -> Tensor:
    """A shift by the width of the type, or more, leaves nothing but the sign."""
    width = 8 * values.element_size()
    if not left:
        return torch.bitwise_right_shift(values, by.clamp(max=width - 1))
    shifted = torch.bitwise_left_shift(values, by.clamp(max=width - 1))
    return torch.where(by >= width, torch.zeros_like(shifted), shifted)


def _cumulate(call: Call) -> Any:
    exclusive, reverse = bool(call.integer("exclusive")), bool(call.integer("reverse"))
    product = call.node.op_type == "CumProd"
    return call.op(cumulate, call.value(0), call.value(1), exclusive=exclusive, reverse=reverse, product=product)


def cumulate(values: Tensor, along: Tensor, *, exclusive: bool, reverse: bool, product: bool) -> Tensor:
    axis = int(along)
    if reverse:
        values = values.flip(axis)
    running = torch.cumprod(values, axis) if product else torch.cumsum(values, axis)
    running = running.to(values.dtype)
    if exclusive:
        start = torch.full_like(running.narrow(axis, 0, 1), 1 if product else 0)
        running = torch.cat([start, running.narrow(axis, 0, running.shape[axis] - 1)], axis)
    return running.flip(axis) if reverse else running


def _einsum(call: Call) -> Any:
    equation = call.text("equation").replace(" ", "")
    return call.apply(torch.einsum, equation, *call.given())


CONVERTERS: dict[str, Converter] = {
    **{name: unary(function) for name, function in UNARY.items()},
    "Add": _commutative(torch.add),
    "Sub": _binary(torch.sub),
    "Mul": _multiply,
    "Div": _divide,
    "Pow": _power,
    "Mod": _modulo,
    "Max": _chain(torch.maximum),
    "Min": _chain(torch.minimum),
    "Sum": _chain(torch.add),
    "Mean": _mean,
    "BitShift": _shift,
    "BitwiseAnd": _binary(torch.bitwise_and),
    "BitwiseOr": _binary(torch.bitwise_or),
    "BitwiseXor": _binary(torch.bitwise_xor),
    "BitwiseNot": unary(torch.bitwise_not),
    "CumSum": _cumulate,
    "CumProd": _cumulate,
    "Einsum": _einsum,
    "Det": unary(torch.det),
    "Tan": unary(torch.tan),
    "Asin": unary(torch.asin),
    "Acos": unary(torch.acos),
    "Atan": unary(torch.atan),
    "Sinh": unary(torch.sinh),
    "Cosh": unary(torch.cosh),
    "Asinh": unary(torch.asinh),
    "Acosh": unary(torch.acosh),
    "Atanh": unary(torch.atanh),
}

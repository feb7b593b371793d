"""Activation functions."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from detent.frontends.onnx.builder import Constant
from detent.frontends.onnx.call import Call, Converter
from detent.frontends.onnx.operators.arithmetic import unary
from detent.ir.metadata import is_code_range
from detent.ir.reference.elementwise import hard_sigmoid, prelu, shrink, swish

__all__ = ["CONVERTERS"]


def _relu(call: Call) -> Any:
    return call.apply(F.relu, call.value(0)) if call.is_real() else call.apply(torch.clamp, call.value(0), min=0)


def _clip(call: Call) -> Any:
    x = call.value(0)
    if _belongs_to_grid(call):
        call.builder.clipped[call.outputs[0]] = call.node.input[0]
        if isinstance(low := _bound(call, 1), float) and isinstance(high := _bound(call, 2), float):
            call.builder.clip_ends[call.outputs[0]] = low, high
        return x
    if call.opset < 11:
        attributes = (call.attribute("min"), call.attribute("max"))
        low, high = (None if attribute is None else attribute.f for attribute in attributes)
    else:
        low, high = _bound(call, 1), _bound(call, 2)
    if low is None and high is None:
        return x
    if call.is_real() and low == 0 and (high == 6 or high is None):
        return call.apply(F.relu6 if high == 6 else F.relu, x)
    return call.apply(torch.clamp, x, min=low, max=high)


def _belongs_to_grid(call: Call) -> bool:
    """Whether it stands before Q because fewer codes are used than the type has, as deployed models note."""
    if not is_code_range(call.node) or not call.users():
        return False
    after = [reader for quantize in call.users() for reader in call.readers(quantize.output[0])]
    return all(node.op_type == "QuantizeLinear" for node in call.users()) and all(
        node.op_type == "DequantizeLinear" for node in after
    )


def _bound(call: Call, index: int) -> Any:
    value = call.optional(index)
    return value.tensor.item() if isinstance(value, Constant) and value.tensor.numel() == 1 else value


def _leaky_relu(call: Call) -> Any:
    return call.apply(F.leaky_relu, call.value(0), negative_slope=call.real("alpha"))


def _elu(call: Call) -> Any:
    return call.apply(F.elu, call.value(0), alpha=call.real("alpha"))


def _celu(call: Call) -> Any:
    return call.apply(F.celu, call.value(0), alpha=call.real("alpha"))


def _selu(call: Call) -> Any:
    alpha, gamma = call.real("alpha"), call.real("gamma")
    return call.op(selu, call.value(0), alpha=alpha, gamma=gamma)


def selu(x: Tensor, *, alpha: float, gamma: float) -> Tensor:
    return gamma * torch.where(x > 0, x, alpha * torch.expm1(x))


def _prelu(call: Call) -> Any:
    x, slope = call.value(0), call.value(1)
    rank = call.rank()
    if isinstance(slope, Constant) and slope.source is not None and slope.tensor.is_floating_point():
        shape = tuple(slope.tensor.shape)
        shape = shape[1:] if len(shape) == rank and shape[0] == 1 else shape
        per_channel = rank is not None and rank >= 2 and len(shape) == rank - 1 and set(shape[1:]) <= {1}
        if slope.tensor.numel() == 1 or per_channel:
            module = nn.PReLU(slope.tensor.numel(), device="meta")
            # The values, not the initializer itself: torch wants them in one dimension.
            module.weight = nn.Parameter(slope.tensor.reshape(-1).clone())
            return call.module(module, x, weight=slope)
    return call.op(prelu, x, slope, kind="prelu")


def _hard_sigmoid(call: Call) -> Any:
    alpha, beta = call.real("alpha"), call.real("beta")
    if math.isclose(alpha, 1 / 6, rel_tol=1e-6) and beta == 0.5:
        return call.apply(F.hardsigmoid, call.value(0))
    return call.op(hard_sigmoid, call.value(0), kind="hardsigmoid", alpha=alpha, beta=beta)


def _gelu(call: Call) -> Any:
    approximate = call.text("approximate")
    if approximate not in ("none", "tanh"):
        call.refuse(f"the approximation {approximate!r}", "ONNX has 'none' and 'tanh'")
    return call.apply(F.gelu, call.value(0), approximate=approximate)


def _swish(call: Call) -> Any:
    alpha = call.real("alpha")
    return call.apply(F.silu, call.value(0)) if alpha == 1 else call.op(swish, call.value(0), kind="silu", alpha=alpha)


def _thresholded(call: Call) -> Any:
    return call.op(thresholded, call.value(0), alpha=call.real("alpha"))


def thresholded(x: Tensor, *, alpha: float) -> Tensor:
    return torch.where(x > alpha, x, torch.zeros_like(x))


def _shrink(call: Call) -> Any:
    return call.op(shrink, call.value(0), kind="shrink", bias=call.real("bias"), lambd=call.real("lambd"))


def _along_axis(function: Callable[..., Any]) -> Converter:
    """Softmax and its kin: along one axis since opset 13, along all from `axis` on before."""

    def convert(call: Call) -> Any:
        x, rank, axis = call.value(0), call.rank(), call.integer("axis")
        if call.opset >= 13:
            return _one_axis(call, function, axis)
        if axis == -1 or (rank is not None and axis == rank - 1):
            return _one_axis(call, function, -1)
        kind = {torch.softmax: "softmax", torch.log_softmax: "log_softmax"}.get(function, "")
        return call.op(flattened, x, kind=kind, function=function, axis=axis)

    return convert


def _one_axis(call: Call, function: Callable[..., Any], axis: int) -> Any:
    if function is hardmax:
        return call.op(hardmax, call.value(0), dim=axis)
    return call.apply(function, call.value(0), dim=axis)


def flattened(x: Tensor, *, function: Callable[..., Tensor], axis: int) -> Tensor:
    rows = math.prod(x.shape[: axis % x.ndim])
    return function(x.reshape(rows, -1), dim=1).reshape(x.shape)


def hardmax(x: Tensor, *, dim: int) -> Tensor:
    """One where the first maximum is."""
    return torch.zeros_like(x).scatter(dim, x.argmax(dim, keepdim=True), 1)


CONVERTERS: dict[str, Converter] = {
    "Relu": _relu,
    "Clip": _clip,
    "LeakyRelu": _leaky_relu,
    "PRelu": _prelu,
    "Elu": _elu,
    "Celu": _celu,
    "Selu": _selu,
    "ThresholdedRelu": _thresholded,
    "Shrink": _shrink,
    "HardSigmoid": _hard_sigmoid,
    "HardSwish": unary(F.hardswish),
    "Gelu": _gelu,
    "Swish": _swish,
    "Softmax": _along_axis(torch.softmax),
    "LogSoftmax": _along_axis(torch.log_softmax),
    "Hardmax": _along_axis(hardmax),
}

"""ONNX operations that compute, as torch functions: layers with weights, pools, norms, and all element by element."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from detent.deploy.torch_call import Call, Function
from detent.deploy.torch_elementwise import BINARY, UNARY

__all__ = ["COMPUTES", "CONV_BY_PLANES"]

CONV_BY_PLANES = "ConvByPlanes"
"""Not an ONNX operation: a Conv of volumes that was written in another way, for runtimes that have none."""


# --- with weights ------------------------------------------------------------------------------------------


def _halves(call: Call, x: Tensor, kernel: Sequence[int]) -> tuple[list[int], list[int]]:
    """What is added before and behind each spatial dimension."""
    rank, auto = len(kernel), call.get("auto_pad", "NOTSET")
    if auto in ("NOTSET", "VALID"):
        pads = call.get("pads", [0] * 2 * rank) if auto == "NOTSET" else [0] * 2 * rank
        return pads[:rank], pads[rank:]
    strides, dilations = call.get("strides", [1] * rank), call.get("dilations", [1] * rank)
    small, large = [], []
    for size, width, stride, dilation in zip(x.shape[2:], kernel, strides, dilations, strict=True):
        needed = max((-(-size // stride) - 1) * stride + (width - 1) * dilation + 1 - size, 0)
        small.append(needed // 2)
        large.append(needed - needed // 2)
    return (small, large) if auto == "SAME_UPPER" else (large, small)


def _padded(call: Call, x: Tensor, kernel: Sequence[int], value: float = 0.0) -> tuple[Tensor, list[int]]:
    """`x` with what the two sides do not have in common added, and the padding that they do."""
    begin, end = _halves(call, x, kernel)
    both = [min(b, e) for b, e in zip(begin, end, strict=True)]
    if begin == end:
        return x, both
    extra = [(b - p, e - p) for b, e, p in zip(begin, end, both, strict=True)]
    return F.pad(x, [size for pair in reversed(extra) for size in pair], value=value), both


def _conv(call: Call) -> Tensor:
    x, padding = _padded(call, call[0], call[1].shape[2:])
    rank = x.ndim - 2
    function = (F.conv1d, F.conv2d, F.conv3d)[rank - 1]
    strides, dilations = call.get("strides", [1] * rank), call.get("dilations", [1] * rank)
    return function(x, call[1], call.optional(2), strides, padding, dilations, call.get("group", 1))


def _conv_transpose(call: Call) -> Tensor:
    x = call[0]
    rank = x.ndim - 2
    begin, end = _halves(call, x, call[1].shape[2:])
    if begin != end or call.get("auto_pad", "NOTSET") != "NOTSET" or "output_shape" in call.op.attributes:
        raise call.refusal("its two sides are cut differently, or its output shape is given")
    function = (F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d)[rank - 1]
    return function(
        x,
        call[1],
        call.optional(2),
        call.get("strides", [1] * rank),
        begin,
        call.get("output_padding", [0] * rank),
        call.get("group", 1),
        call.get("dilations", [1] * rank),
    )


def _conv_by_planes(call: Call) -> Tensor:
    """A convolution of volumes as convolutions of planes that are added up. Behind its data and bias it reads the
    weights, one tensor for each place along the depth."""
    data, bias, *weights = (call.optional(index) for index in range(len(call.values)))
    assert data is not None
    kernel = [len(weights), *call[2].shape[2:]]
    begin, end = _halves(call, data, kernel)
    strides, dilations = call.get("strides", [1] * 3), call.get("dilations", [1] * 3)
    x = F.pad(data, [size for pair in reversed(list(zip(begin, end, strict=True))) for size in pair])
    depth = (x.shape[2] - (kernel[0] - 1) * dilations[0] - 1) // strides[0] + 1
    found: Tensor | None = None
    for place, weight in enumerate(weights):
        first = place * dilations[0]
        picked = x[:, :, first : first + (depth - 1) * strides[0] + 1 : strides[0]]
        planes = picked.transpose(1, 2).reshape(-1, x.shape[1], *x.shape[3:])
        part = F.conv2d(planes, weight, bias, strides[1:], 0, dilations[1:], call.get("group", 1))  # type: ignore[arg-type]
        found, bias = part if found is None else found + part, None
    assert found is not None
    return found.reshape(x.shape[0], depth, *found.shape[1:]).transpose(1, 2)


def _gemm(call: Call) -> Tensor:
    a = call[0].t() if call.get("transA", 0) else call[0]
    bias, alpha, beta = call.optional(2), call.get("alpha", 1.0), call.get("beta", 1.0)
    if call.get("transB", 0) and alpha == beta == 1.0 and (bias is None or bias.ndim == 1):
        return F.linear(a, call[1], bias)
    product: Tensor = alpha * (a @ (call[1].t() if call.get("transB", 0) else call[1]))
    return product if bias is None else product + beta * bias


# --- pools -------------------------------------------------------------------------------------------------


def _max_pool(call: Call) -> Tensor:
    kernel = call.get("kernel_shape")
    rank = len(kernel)
    if call.get("storage_order", 0) or len(call.op.outputs) > 1:
        raise call.refusal("it gives indices")
    x, padding = _padded(call, call[0], kernel, float("-inf"))
    function = (F.max_pool1d, F.max_pool2d, F.max_pool3d)[rank - 1]
    strides, dilations = call.get("strides", [1] * rank), call.get("dilations", [1] * rank)
    return function(x, kernel, strides, padding, dilations, ceil_mode=bool(call.get("ceil_mode", 0)))


def _average_pool(call: Call) -> Tensor:
    x, kernel = call[0], call.get("kernel_shape")
    rank = len(kernel)
    begin, end = _halves(call, x, kernel)
    if begin != end or any(d != 1 for d in call.get("dilations", [1] * rank)):
        raise call.refusal("its two sides are padded differently, or it is dilated")
    function: Any = (F.avg_pool1d, F.avg_pool2d, F.avg_pool3d)[rank - 1]
    counted = bool(call.get("count_include_pad", 0)) or not any(begin)
    return function(  # type: ignore[no-any-return]
        x,
        kernel,
        call.get("strides", [1] * rank),
        begin,
        ceil_mode=bool(call.get("ceil_mode", 0)),
        count_include_pad=counted,
    )


def _global_average_pool(call: Call) -> Tensor:
    x = call[0]
    functions: Any = (F.adaptive_avg_pool1d, F.adaptive_avg_pool2d, F.adaptive_avg_pool3d)
    return functions[x.ndim - 3](x, 1)  # type: ignore[no-any-return]


def _global_max_pool(call: Call) -> Tensor:
    return call[0].amax(tuple(range(2, call[0].ndim)), keepdim=True)


# --- element by element ------------------------------------------------------------------------------------


def _unary(function: Callable[[Tensor], Tensor]) -> Function:
    return lambda call: function(call[0])


def _binary(function: Callable[[Tensor, Tensor], Tensor]) -> Function:
    return lambda call: function(call[0], call[1])


def _clip(call: Call) -> Tensor:
    low, high = call.array(1), call.array(2)
    if low is None and high is None:
        return call[0]
    if low is not None and high is not None:
        return F.hardtanh(call[0], float(low), float(high))  # which ExecuTorch fuses into what is before it
    return torch.clamp(call[0], None if low is None else float(low), None if high is None else float(high))


def _hard_sigmoid(call: Call) -> Tensor:
    return torch.clamp(call[0] * call.get("alpha", 0.2) + call.get("beta", 0.5), 0.0, 1.0)


def _p_relu(call: Call) -> Tensor:
    return torch.where(call[0] < 0, call[0] * call[1], call[0])


_DTYPES = {1: torch.float32, 6: torch.int32, 7: torch.int64, 9: torch.bool, 10: torch.float16, 11: torch.float64}


def _cast(call: Call) -> Tensor:
    if call.get("to") not in _DTYPES:
        raise call.refusal(f"it casts to ONNX type {call.get('to')}")
    return call[0].to(_DTYPES[call.get("to")])


def _layer_norm(call: Call) -> Tensor:
    shape = call[0].shape[call.get("axis", -1) % call[0].ndim :]
    return F.layer_norm(call[0], list(shape), call[1], call.optional(2), call.get("epsilon", 1e-5))


def _batch_norm(call: Call) -> Tensor:
    return F.batch_norm(call[0], call[3], call[4], call[1], call[2], eps=call.get("epsilon", 1e-5))


def _instance_norm(call: Call) -> Tensor:
    return F.instance_norm(call[0], weight=call[1], bias=call[2], eps=call.get("epsilon", 1e-5))


def _group_norm(call: Call) -> Tensor:
    return F.group_norm(call[0], call.get("num_groups"), call[1], call[2], call.get("epsilon", 1e-5))


COMPUTES: dict[str, Function] = {
    **{name: _unary(function) for name, function in UNARY.items()},
    **{name: _binary(function) for name, function in BINARY.items()},
    "And": _binary(torch.logical_and),
    "AveragePool": _average_pool,
    "BatchNormalization": _batch_norm,
    "Cast": _cast,
    "Celu": lambda call: F.celu(call[0], call.get("alpha", 1.0)),
    "Clip": _clip,
    "Conv": _conv,
    "ConvTranspose": _conv_transpose,
    CONV_BY_PLANES: _conv_by_planes,
    "Elu": lambda call: F.elu(call[0], call.get("alpha", 1.0)),
    "Gelu": lambda call: F.gelu(call[0], approximate=call.get("approximate", "none")),
    "Gemm": _gemm,
    "GlobalAveragePool": _global_average_pool,
    "GlobalMaxPool": _global_max_pool,
    "Greater": _binary(torch.gt),
    "GreaterOrEqual": _binary(torch.ge),
    "GroupNormalization": _group_norm,
    "HardSigmoid": _hard_sigmoid,
    "HardSwish": _unary(F.hardswish),
    "InstanceNormalization": _instance_norm,
    "LayerNormalization": _layer_norm,
    "LeakyRelu": lambda call: F.leaky_relu(call[0], call.get("alpha", 0.01)),
    "Less": _binary(torch.lt),
    "LessOrEqual": _binary(torch.le),
    "LogSoftmax": lambda call: F.log_softmax(call[0], call.get("axis", -1)),
    "MaxPool": _max_pool,
    "Not": _unary(torch.logical_not),
    "Or": _binary(torch.logical_or),
    "PRelu": _p_relu,
    "Range": lambda call: torch.arange(*(value.item() for value in (call[0], call[1], call[2]))),
    "Sign": _unary(torch.sign),
    "Softmax": lambda call: F.softmax(call[0], call.get("axis", -1)),
    "Where": lambda call: torch.where(call[0], call[1], call[2]),
}
"""By operation type."""

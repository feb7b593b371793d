"""Normalizations."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from detent.frontends.onnx.builder import Constant, Value
from detent.frontends.onnx.call import Call, Converter

__all__ = ["CONVERTERS"]

_BATCH_NORMS: dict[int | None, Any] = {2: nn.BatchNorm1d, 3: nn.BatchNorm1d, 4: nn.BatchNorm2d, 5: nn.BatchNorm3d}
_INSTANCE_NORMS: dict[int | None, Any] = {3: nn.InstanceNorm1d, 4: nn.InstanceNorm2d, 5: nn.InstanceNorm3d}


def _constants(*values: Value | None) -> bool:
    return all(isinstance(value, Constant) and value.tensor.is_floating_point() for value in values)


def _vectors(call: Call, *indices: int) -> list[Constant] | None:
    """The inputs, if all are constant vectors of one length."""
    values = [call.value(index) for index in indices]
    if not _constants(*values) or len({tuple(value.tensor.shape) for value in values}) != 1:  # type: ignore[union-attr]
        return None
    found = [value for value in values if isinstance(value, Constant)]
    return found if found[0].tensor.ndim == 1 else None


def _batch_norm(call: Call) -> Any:
    if call.integer("training_mode") or (call.opset < 14 and any(call.node.output[1:])):
        call.refuse("it is in training mode", "export the model in eval mode")
    if call.attribute("spatial") is not None and not call.integer("spatial"):
        call.refuse("it is not spatial", "export the model with a norm of whole channels")
    x, eps = call.value(0), call.real("epsilon")
    held = _vectors(call, 1, 2, 3, 4)
    if held is None or call.rank() not in _BATCH_NORMS or isinstance(x, Constant):
        statistics = [_not_learned(call.value(index)) for index in (3, 4)]
        return call.apply(F.batch_norm, x, *statistics, call.value(1), call.value(2), eps=eps)
    scale, bias, mean, variance = held
    # ONNX keeps `momentum` of the old statistics, torch that much of the new ones.
    momentum = 1 - call.real("momentum")
    module = _BATCH_NORMS[call.rank()](scale.tensor.numel(), eps, momentum)
    module.weight, module.bias = call.parameter(scale), call.parameter(bias)
    module.running_mean, module.running_var = mean.tensor.clone(), variance.tensor.clone()
    return call.module(module, x, weight=scale, bias=bias, running_mean=mean, running_var=variance)


def _not_learned(value: Value) -> Value:
    return replace(value, learned=False) if isinstance(value, Constant) else value


def _instance_norm(call: Call) -> Any:
    x, eps, held = call.value(0), call.real("epsilon"), _vectors(call, 1, 2)
    if held is None or call.rank() not in _INSTANCE_NORMS or isinstance(x, Constant):
        return call.apply(F.instance_norm, x, weight=call.value(1), bias=call.value(2), eps=eps)
    scale, bias = held
    module = _INSTANCE_NORMS[call.rank()](scale.tensor.numel(), eps, affine=True, device="meta")
    module.weight, module.bias = call.parameter(scale), call.parameter(bias)
    return call.module(module, x, weight=scale, bias=bias)


def _layer_norm(call: Call) -> Any:
    x, scale, bias = call.value(0), call.value(1), call.optional(2)
    axis, eps, rank = call.integer("axis"), call.real("epsilon"), call.rank()
    shape = _normalized(call, axis)
    fits = rank is not None and shape is not None and call.is_real() and call.dims(1) == shape
    fits = fits and (bias is None or call.dims(2) == shape)
    if any(call.node.output[1:]):
        return call.parts(layer_norm, x, scale, bias, kind="layernorm", axis=axis, eps=eps)
    if not fits:
        return call.op(layer_norm_alone, x, scale, bias, kind="layernorm", axis=axis, eps=eps)
    assert shape is not None
    if isinstance(x, Constant) or not _constants(scale, *([bias] if bias is not None else [])):
        return call.apply(F.layer_norm, x, shape, scale, bias, eps)
    assert isinstance(scale, Constant)
    module = nn.LayerNorm(shape, eps, bias=bias is not None, device="meta")
    module.weight = call.parameter(scale)
    if isinstance(bias, Constant):
        module.bias = call.parameter(bias)
    return call.module(module, x, weight=scale, bias=bias if isinstance(bias, Constant) else None)


def _normalized(call: Call, axis: int) -> tuple[int, ...] | None:
    """The sizes of the normalized axes, if all are known."""
    dims = call.dims(0)
    if dims is None or not -len(dims) <= axis < len(dims):
        return None
    last, scale = dims[axis % len(dims) :], call.dims(1)
    if scale is not None and len(scale) == len(last) and None not in scale and 1 not in scale:
        last = scale  # sizes that a dynamic axis hides; scales of size 1 may broadcast
    return tuple(size for size in last if size is not None) if None not in last else None


def layer_norm(
    x: Tensor, scale: Tensor, bias: Tensor | None, *, axis: int, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """The result, the mean and the inverse deviation; computed in float32 at least."""
    dims = tuple(range(axis % x.ndim, x.ndim))
    wide = x if x.dtype == torch.float64 else x.float()
    mean = wide.mean(dims, keepdim=True)
    centered = wide - mean
    inverse = torch.rsqrt((centered * centered).mean(dims, keepdim=True) + eps)
    y = (centered * inverse).to(x.dtype) * scale
    return (y if bias is None else y + bias), mean, inverse


def layer_norm_alone(x: Tensor, scale: Tensor, bias: Tensor | None, *, axis: int, eps: float) -> Tensor:
    return layer_norm(x, scale, bias, axis=axis, eps=eps)[0]


def _rms_norm(call: Call) -> Any:
    x, scale, axis, eps = call.value(0), call.value(1), call.integer("axis"), call.real("epsilon")
    shape = _normalized(call, axis)
    if shape is None or call.dims(1) != shape or not call.is_real():
        return call.op(rms_norm, x, scale, kind="rmsnorm", axis=axis, eps=eps)
    if isinstance(x, Constant) or not isinstance(scale, Constant):
        return call.apply(F.rms_norm, x, shape, scale, eps)
    module = nn.RMSNorm(shape, eps, device="meta")
    module.weight = call.parameter(scale)
    return call.module(module, x, weight=scale)


def rms_norm(x: Tensor, scale: Tensor, *, axis: int, eps: float) -> Tensor:
    dims = tuple(range(axis % x.ndim, x.ndim))
    wide = x if x.dtype == torch.float64 else x.float()
    return (wide * torch.rsqrt((wide * wide).mean(dims, keepdim=True) + eps)).to(x.dtype) * scale


def _group_norm(call: Call) -> Any:
    x, groups, eps = call.value(0), call.integer("num_groups"), call.real("epsilon")
    held, dims = _vectors(call, 1, 2), call.dims(0)
    channels = dims[1] if dims is not None and len(dims) > 1 else None
    if call.opset < 21 or held is None or channels is None or isinstance(x, Constant):
        by_group = call.opset < 21
        return call.op(
            group_norm, x, call.value(1), call.value(2), kind="groupnorm", groups=groups, eps=eps, by_group=by_group
        )
    scale, bias = held
    module = nn.GroupNorm(groups, channels, eps, device="meta")
    module.weight, module.bias = call.parameter(scale), call.parameter(bias)
    return call.module(module, x, weight=scale, bias=bias)


def group_norm(x: Tensor, scale: Tensor, bias: Tensor, *, groups: int, eps: float, by_group: bool) -> Tensor:
    """Before opset 21 there is one scale and bias for each group."""
    each = x.shape[1] // groups if by_group else 1
    return F.group_norm(x, groups, scale.repeat_interleave(each), bias.repeat_interleave(each), eps)


def _lrn(call: Call) -> Any:
    size = call.integer("size")
    if not 1 <= size <= 2**16:
        call.refuse(f"a window of {size} channels", "export the model again")
    alpha, beta, bias = call.real("alpha"), call.real("beta"), call.real("bias")
    if size % 2 and not isinstance(call.value(0), Constant):
        return call.module(nn.LocalResponseNorm(size, alpha, beta, bias), call.value(0))
    return call.op(lrn, call.value(0), kind="local_response_norm", size=size, alpha=alpha, beta=beta, bias=bias)


def lrn(x: Tensor, *, size: int, alpha: float, beta: float, bias: float) -> Tensor:
    """Local response normalization; in an even window the half before the channel is the smaller one."""
    before = (size - 1) // 2
    squares = F.pad((x * x).flatten(2).transpose(1, 2), (before, size - 1 - before))
    sums = squares.unfold(-1, size, 1).sum(-1).transpose(1, 2).reshape(x.shape)
    return x / (bias + alpha / size * sums) ** beta


def _lp_normalization(call: Call) -> Any:
    p = call.integer("p")
    if p not in (1, 2):
        call.refuse(f"p = {p}", "ONNX has 1 and 2")
    return call.op(lp_normalize, call.value(0), axis=call.integer("axis"), p=p)


def lp_normalize(x: Tensor, *, axis: int, p: int) -> Tensor:
    norm = x.abs().sum(axis, keepdim=True) if p == 1 else (x * x).sum(axis, keepdim=True).sqrt()
    return torch.where(norm == 0, torch.zeros_like(x), x / norm)


def _mean_variance(call: Call) -> Any:
    return call.op(mean_variance, call.value(0), axes=call.integers("axes") or [0, 2, 3])


def mean_variance(x: Tensor, *, axes: list[int]) -> Tensor:
    mean = x.mean(axes, keepdim=True)
    deviation = ((x * x).mean(axes, keepdim=True) - mean * mean).sqrt()
    return (x - mean) / (deviation + 1e-9)


CONVERTERS: dict[str, Converter] = {
    "BatchNormalization": _batch_norm,
    "InstanceNormalization": _instance_norm,
    "LayerNormalization": _layer_norm,
    "RMSNormalization": _rms_norm,
    "GroupNormalization": _group_norm,
    "LRN": _lrn,
    "LpNormalization": _lp_normalization,
    "MeanVarianceNormalization": _mean_variance,
}

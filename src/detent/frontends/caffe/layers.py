"""Caffe's layers as torch modules and functions: the table, and those without weights."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from detent.frontends.caffe import weights as caffe_weights
from detent.frontends.caffe.layer import Layer, pair

__all__ = ["CONVERTERS", "DROPPED"]

DROPPED = frozenset({"Accuracy", "EuclideanLoss", "Silence", "SoftmaxWithLoss"})
"""Layers that train or measure, and are no part of a deployed network."""


def _relu(layer: Layer) -> Any:
    slope = float(layer.message.relu_param.negative_slope)
    return layer.apply(F.relu, layer.x) if slope == 0 else layer.apply(F.leaky_relu, layer.x, negative_slope=slope)


def _pooling(layer: Layer) -> Any:
    p = layer.message.pooling_param
    if p.pool == 2:
        layer.refuse("stochastic pooling", "use MAX or AVE")
    if p.global_pooling:
        return layer.apply(F.adaptive_avg_pool2d if p.pool else F.adaptive_max_pool2d, layer.x, 1)
    kernel, stride = pair(layer, p, "kernel_size", "kernel", 0), pair(layer, p, "stride", "stride", 1)
    pad, ceil = pair(layer, p, "pad", "pad", 0), p.round_mode == 0
    if min(kernel) < 1 or min(stride) < 1:
        layer.refuse(f"kernel {kernel} and stride {stride}", "give sizes above zero")
    if ceil and any(s > k and not q for s, k, q in zip(stride, kernel, pad, strict=True)):
        layer.refuse(
            f"stride {stride} above kernel {kernel}: where sizes are rounded up, Caffe's last window may be empty",
            "say round_mode: FLOOR, or use a kernel as large as the stride",
        )
    # Caffe divides by the part of the window inside the padded image, as torch does with pads counted.
    function: Any = F.avg_pool2d if p.pool else F.max_pool2d
    return layer.apply(function, layer.x, kernel, stride=stride, padding=pad, ceil_mode=ceil)


def _eltwise(layer: Layer) -> Any:
    p = layer.message.eltwise_param
    coefficients = [float(value) for value in p.coeff]
    functions: tuple[Callable[..., Any], ...] = (torch.mul, torch.add, torch.maximum)
    function = functions[p.operation]
    values: list[Any] = list(layer.inputs)
    if coefficients and (p.operation != 1 or len(coefficients) != len(values)):
        layer.refuse(f"{len(coefficients)} coefficients for {len(values)} bottoms", "sums may have one for each")
    for index, factor in enumerate(coefficients):
        if factor != 1:
            values[index] = layer.apply(torch.mul, values[index], factor, step=f"times_{index}")
    if len(values) < 2:
        layer.refuse("one bottom", "it takes two or more")
    result = values[0]
    for index, value in enumerate(values[1:]):
        result = layer.apply(function, result, value, step="" if index == len(values) - 2 else f"upto_{index + 2}")
    return result


def _concat(layer: Layer) -> Any:
    p = layer.message.concat_param
    axis = int(p.concat_dim) if p.HasField("concat_dim") else int(p.axis)
    return layer.apply(torch.cat, layer.inputs, dim=axis)


def _slice(layer: Layer) -> Any:
    p = layer.message.slice_param
    axis = int(p.slice_dim) if p.HasField("slice_dim") else int(p.axis)
    points, tops = [int(point) for point in p.slice_point], list(layer.message.top)
    if not points:
        parts = layer.apply(torch.chunk, layer.x, len(tops), dim=axis, step="parts")
        return tuple(layer.apply(operator.getitem, parts, index, step=name) for index, name in enumerate(tops))
    if len(points) != len(tops) - 1 or points != sorted(set(points)) or axis < 0:
        layer.refuse(f"slice points {points} for {len(tops)} tops", "give one less than tops, in order")
    ends = zip([0, *points], [*points, None], strict=True)
    ranges = [(*[slice(None)] * axis, slice(start, end)) for start, end in ends]
    return tuple(layer.apply(operator.getitem, layer.x, at, step=name) for at, name in zip(ranges, tops, strict=True))


def _softmax(layer: Layer) -> Any:
    return layer.apply(torch.softmax, layer.x, dim=int(layer.message.softmax_param.axis))


def _dropout(layer: Layer) -> Any:
    return layer.module(nn.Dropout(float(layer.message.dropout_param.dropout_ratio)), layer.x)


def _lrn(layer: Layer) -> Any:
    p = layer.message.lrn_param
    if p.norm_region != 0 or p.local_size % 2 == 0:
        layer.refuse(f"a window of {p.local_size}, or one within a channel", "odd windows across channels are imported")
    return layer.module(nn.LocalResponseNorm(int(p.local_size), float(p.alpha), float(p.beta), float(p.k)), layer.x)


def _reshape(layer: Layer) -> Any:
    p = layer.message.reshape_param
    shape = [int(size) for size in p.shape.dim]
    if p.axis != 0 or p.num_axes != -1 or 0 in shape[1:] or shape.count(-1) > 1 or not shape:
        layer.refuse(
            f"the shape {shape} from axis {p.axis} on", "shapes of the whole, with a 0 for the batch, are imported"
        )
    layer.rank = len(shape)
    if shape[0] == 0 and -1 in shape:
        return layer.module(nn.Unflatten(1, shape[1:]), layer.apply(torch.flatten, layer.x, 1, step="flat"))
    return layer.apply(torch.reshape, layer.x, (-1 if shape[0] == 0 else shape[0], *shape[1:]))


def _flatten(layer: Layer) -> Any:
    p = layer.message.flatten_param
    start, end = int(p.axis) % layer.rank, int(p.end_axis) % layer.rank
    layer.rank -= end - start
    return layer.apply(torch.flatten, layer.x, start, end)


def _power(layer: Layer) -> Any:
    p = layer.message.power_param
    result: Any = layer.x
    steps: list[tuple[Any, float, float]] = [(torch.mul, p.scale, 1), (torch.add, p.shift, 0), (torch.pow, p.power, 1)]
    for function, number, nothing in steps:
        if number != nothing:
            result = layer.apply(function, result, float(number), step=function.__name__)
    return result


def _permute(layer: Layer) -> Any:
    order = [int(axis) for axis in layer.message.permute_param.order]
    rest = [axis for axis in range(layer.rank) if axis not in order]
    return layer.apply(torch.permute, layer.x, (*order, *rest))


def _upsample(layer: Layer) -> Any:
    p = layer.message.upsample_param
    if len(layer.inputs) != 1 or p.HasField("upsample_h") or p.HasField("upsample_w") or p.scale < 1:
        layer.refuse("upsampling by a mask, or to a size", "upsampling by a whole factor is imported")
    factors = (int(p.scale_h or p.scale), int(p.scale_w or p.scale))
    return layer.apply(F.interpolate, layer.x, scale_factor=factors, mode="nearest")


def _interp(layer: Layer) -> Any:
    p = layer.message.interp_param
    if p.pad_beg or p.pad_end or p.shrink_factor != 1 or p.zoom_factor != 1 or p.height < 1 or p.width < 1:
        layer.refuse("zooming, shrinking or pads", "interpolation to a height and a width is imported")
    size = (int(p.height), int(p.width))
    return layer.apply(F.interpolate, layer.x, size=size, mode="bilinear", align_corners=True)


def _unary(function: Callable[..., Any]) -> Callable[[Layer], Any]:
    return lambda layer: layer.apply(function, layer.x)


def _split(layer: Layer) -> Any:
    return (layer.x,) * len(layer.message.top)


def _elu(layer: Layer) -> Any:
    return layer.apply(F.elu, layer.x, alpha=float(layer.message.elu_param.alpha))


CONVERTERS: dict[str, Callable[[Layer], Any]] = {
    **caffe_weights.CONVERTERS,
    "ReLU": _relu,
    "ELU": _elu,
    "Sigmoid": _unary(torch.sigmoid),
    "TanH": _unary(torch.tanh),
    "AbsVal": _unary(torch.abs),
    "Power": _power,
    "Pooling": _pooling,
    "LRN": _lrn,
    "Dropout": _dropout,
    "Eltwise": _eltwise,
    "Concat": _concat,
    "Slice": _slice,
    "Split": _split,
    "Softmax": _softmax,
    "Reshape": _reshape,
    "Flatten": _flatten,
    "Permute": _permute,
    "Upsample": _upsample,
    "Interp": _interp,
}

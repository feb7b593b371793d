"""Caffe's layers that hold weights."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from detent.frontends.caffe.layer import Layer, pair

__all__ = ["CONVERTERS"]


def _convolution(layer: Layer) -> Any:
    p = layer.message.convolution_param
    transposed = layer.kind == "Deconvolution"
    kernel, stride = pair(layer, p, "kernel_size", "kernel", 0), pair(layer, p, "stride", "stride", 1)
    pad = pair(layer, p, "pad", "pad", 0)
    dilation = tuple(p.dilation) or (1,)
    if min(kernel) < 1 or p.axis != 1 or p.group < 1 or p.num_output < 1 or len(dilation) > 2:
        layer.refuse(f"kernel {kernel}, axis {p.axis}, {p.group} groups", "2-d convolutions are imported")
    outputs, groups = int(p.num_output), int(p.group)
    inputs = layer.blob(0, "weight").numel() * groups // (outputs * kernel[0] * kernel[1])
    dilated = (int(dilation[0]), int(dilation[-1]))
    options: dict[str, Any] = {
        "stride": stride,
        "padding": pad,
        "dilation": dilated,
        "groups": groups,
        "bias": p.bias_term,
    }
    made: Any = (nn.ConvTranspose2d if transposed else nn.Conv2d)(inputs, outputs, kernel, device="meta", **options)
    made.weight = layer.shaped(0, "weight", *made.weight.shape)
    if p.bias_term:
        made.bias = layer.shaped(1, "bias", outputs)
    return layer.module(made, layer.x)


def _inner_product(layer: Layer) -> Any:
    p = layer.message.inner_product_param
    outputs = int(p.num_output)
    if outputs < 1 or p.axis < 1:
        layer.refuse(f"{outputs} outputs from axis {p.axis} on", "the batch is kept: axis is 1 or more")
    inputs = layer.blob(0, "weight").numel() // outputs
    made = nn.Linear(inputs, outputs, bool(p.bias_term), device="meta")
    if p.transpose:
        made.weight = nn.Parameter(layer.shaped(0, "weight", inputs, outputs).detach().t().contiguous())
    else:
        made.weight = layer.shaped(0, "weight", outputs, inputs)
    if p.bias_term:
        made.bias = layer.shaped(1, "bias", outputs)
    layer.rank = int(p.axis) + 1
    return layer.module(made, layer.apply(torch.flatten, layer.x, int(p.axis), step="flat"))


def _batch_norm(layer: Layer) -> Any:
    """With the Scale layer behind it, if there is one: together they are the batch norm of torch."""
    p = layer.message.batch_norm_param
    if p.HasField("use_global_stats") and not p.use_global_stats:
        layer.refuse("use_global_stats: false, by which it normalizes each batch by itself", "leave the line out")
    mean, variance = layer.blob(0, "mean").reshape(-1), layer.blob(1, "variance").reshape(-1)
    total = float(layer.blob(2, "scale factor").reshape(-1)[0])
    factor = 0.0 if total == 0 else 1 / total
    norm = nn.BatchNorm2d if layer.rank == 4 else nn.BatchNorm1d
    made = norm(mean.numel(), float(p.eps), 1 - float(p.moving_average_fraction), affine=layer.scale is not None)
    made.running_mean, made.running_var = mean * factor, variance * factor
    if layer.scale is not None:
        made.weight = layer.scale.shaped(0, "scale", mean.numel())
        made.bias = nn.Parameter(torch.zeros(mean.numel()))
        if layer.scale.message.scale_param.bias_term:
            made.bias = layer.scale.shaped(1, "bias", mean.numel())
    return layer.module(made, layer.x)


def _scale(layer: Layer) -> Any:
    p = layer.message.scale_param
    if len(layer.inputs) == 2 and not p.bias_term:
        if p.axis != 0:
            layer.refuse(f"two bottoms from axis {p.axis} on", "axis 0 is imported")
        return layer.apply(torch.mul, *layer.inputs)
    if p.axis != 1 or p.num_axes != 1:
        layer.refuse(f"axis {p.axis} and {p.num_axes} axes", "scales of channels are imported")
    shape = (layer.blob(0, "scale").numel(), *[1] * (layer.rank - 2))
    scaled = layer.learned(layer.shaped(0, "scale", *shape).detach(), "weight")
    if not p.bias_term:
        return layer.apply(torch.mul, layer.x, scaled)
    product = layer.apply(torch.mul, layer.x, scaled, step="scaled")
    return layer.apply(torch.add, product, layer.learned(layer.shaped(1, "bias", *shape).detach(), "bias"))


def _prelu(layer: Layer) -> Any:
    count = layer.blob(0, "slope").numel()
    made = nn.PReLU(count, device="meta")
    made.weight = layer.shaped(0, "slope", count)
    return layer.module(made, layer.x)


CONVERTERS: dict[str, Callable[[Layer], Any]] = {
    "Convolution": _convolution,
    "Deconvolution": _convolution,
    "InnerProduct": _inner_product,
    "BatchNorm": _batch_norm,
    "Scale": _scale,
    "PReLU": _prelu,
}

"""Pooling, means, sums and normalizations."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from detent.errors import DeployError
from detent.frontends.torch.builder import ONNX_TYPES, Builder, Read
from detent.frontends.torch.ops_weighted import Sizes, each
from detent.frontends.torch.values import Ref

__all__ = [
    "argmax",
    "avg_pool",
    "batch_norm",
    "cumsum",
    "group_norm",
    "instance_norm",
    "layer_norm",
    "local_response_norm",
    "max_pool",
    "reduce_",
    "rms_norm",
]


def max_pool(
    b: Builder,
    input: Ref,
    kernel_size: Sizes,
    stride: Sizes | None = None,
    padding: Sizes = 0,
    dilation: Sizes = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> Ref:
    if return_indices:
        raise DeployError(f"write {b.current!r}", "a max pooling that returns indices", "do not ask for the indices")
    rank = input.ndim - 2
    window = _window(input, kernel_size, stride or kernel_size, padding)
    return b.final(
        "MaxPool",
        [input],
        **window,
        dilations=each(dilation, rank),
        ceil_mode=int(ceil_mode and _rounds_up(b, input, window, each(dilation, rank))),
    )


def _window(input: Ref, kernel_size: Sizes, stride: Sizes, padding: Sizes) -> dict[str, list[int]]:
    rank = input.ndim - 2
    return {
        "kernel_shape": each(kernel_size, rank),
        "strides": each(stride, rank),
        "pads": 2 * each(padding, rank),
    }


def _rounds_up(b: Builder, input: Ref, window: dict[str, list[int]], dilations: list[int]) -> bool:
    """Whether there is a window that hangs over the end: torch leaves out one that begins there, ONNX may not."""
    kernel, strides, pads = window["kernel_shape"], window["strides"], window["pads"]
    down = [
        (int(size) + 2 * pad - dilation * (k - 1) - 1) // stride + 1
        for size, k, stride, pad, dilation in zip(input.shape[2:], kernel, strides, pads, dilations, strict=False)
    ]
    return down != list(b.result.shape[2:])


def avg_pool(
    b: Builder,
    input: Ref,
    kernel_size: Sizes,
    stride: Sizes | None = None,
    padding: Sizes = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> Ref:
    window = _window(input, kernel_size, stride or kernel_size, padding)
    rounds_up = ceil_mode and _rounds_up(b, input, window, [1] * (input.ndim - 2))
    if divisor_override is None:
        return b.final(
            "AveragePool", [input], **window, ceil_mode=int(rounds_up), count_include_pad=int(count_include_pad)
        )
    if rounds_up:
        raise DeployError(
            f"write {b.current!r}", "an average pooling with its own divisor and ceil_mode", "use ceil_mode=False"
        )
    means = b.emit("AveragePool", [input], **window, count_include_pad=1)
    factor = math.prod(window["kernel_shape"]) / divisor_override
    return b.final("Mul", [means, b.constant(factor, dtype=np.float32)])


def _axes(dim: Any, ndim: int) -> list[int]:
    if dim is None:
        return list(range(ndim))
    return sorted(int(d) % ndim for d in ([dim] if isinstance(dim, int) else dim))


def reduce_(op: str) -> Callable[..., Ref]:
    def emit(b: Builder, input: Ref, dim: Any = None, keepdim: bool = False, **_: Any) -> Ref:
        axes = _axes(dim, input.ndim)
        x: Read = input
        if input.dtype != b.result.dtype:  # a count of a mask, or a type that was asked for
            x = b.emit("Cast", [input], to=ONNX_TYPES[b.result.dtype])
        if b.opset < 18 and op != "ReduceSum":
            return b.final(op, [x], axes=axes, keepdims=int(keepdim))
        return b.final(op, [x, b.integers(axes)], keepdims=int(keepdim))

    return emit


def cumsum(b: Builder, input: Ref, dim: int, **_: Any) -> Ref:
    x: Read = input if input.dtype == b.result.dtype else b.emit("Cast", [input], to=ONNX_TYPES[b.result.dtype])
    return b.final("CumSum", [x, b.constant(np.int64(input.axis(dim)))])


def argmax(b: Builder, input: Ref, dim: int | None = None, keepdim: bool = False) -> Ref:
    if dim is None:
        flat = b.emit("Reshape", [input, b.integers([-1])])
        return b.final("ArgMax", [flat], axis=0, keepdims=0)
    return b.final("ArgMax", [input], axis=input.axis(dim), keepdims=int(keepdim))


def batch_norm(
    b: Builder,
    input: Ref,
    running_mean: Ref | None,
    running_var: Ref | None,
    weight: Ref | None = None,
    bias: Ref | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Ref:
    del momentum
    if training:
        raise DeployError(
            f"write {b.current!r}", "a batch norm with the statistics of the batch", "call it with training=False"
        )
    if running_mean is None or running_var is None:
        raise DeployError(
            f"write {b.current!r}",
            "a batch norm that keeps no statistics: the result for a sample depends on the rest of its batch",
            "make it with track_running_stats=True",
        )
    channels = int(input.shape[1])
    gamma = weight or b.constant(torch.ones(channels))
    beta = bias or b.constant(torch.zeros(channels))
    return b.final("BatchNormalization", [input, gamma, beta, running_mean, running_var], epsilon=float(eps))


def layer_norm(
    b: Builder,
    input: Ref,
    normalized_shape: Sequence[int],
    weight: Ref | None = None,
    bias: Ref | None = None,
    eps: float = 1e-5,
) -> Ref:
    shape = [int(size) for size in normalized_shape]
    gamma = weight or b.constant(torch.ones(shape))
    return b.final("LayerNormalization", [input, gamma, bias], axis=-len(shape), epsilon=float(eps))


def rms_norm(
    b: Builder,
    input: Ref,
    normalized_shape: Sequence[int],
    weight: Ref | None = None,
    eps: float | None = None,
) -> Ref:
    axes = list(range(-len(normalized_shape), 0))
    square = b.emit("Mul", [input, input])
    if b.opset < 18:
        average = b.emit("ReduceMean", [square], axes=axes, keepdims=1)
    else:
        average = b.emit("ReduceMean", [square, b.integers(axes)], keepdims=1)
    least = torch.finfo(input.dtype).eps if eps is None else eps
    shifted = b.emit("Add", [average, b.constant(torch.tensor(least, dtype=input.dtype))])
    root = b.emit("Sqrt", [shifted])
    if weight is None:
        return b.final("Div", [input, root])
    return b.final("Mul", [b.emit("Div", [input, root]), weight])


def instance_norm(
    b: Builder,
    input: Ref,
    running_mean: Ref | None = None,
    running_var: Ref | None = None,
    weight: Ref | None = None,
    bias: Ref | None = None,
    use_input_stats: bool = True,
    momentum: float = 0.1,
    eps: float = 1e-5,
    *,
    track_running_stats: bool = False,
) -> Ref:
    """A module that tracks its statistics uses them."""
    del momentum
    channels = int(input.shape[1])
    if track_running_stats or not use_input_stats:
        return batch_norm(b, input, running_mean, running_var, weight, bias, eps=eps)
    gamma = weight or b.constant(torch.ones(channels))
    beta = bias or b.constant(torch.zeros(channels))
    return b.final("InstanceNormalization", [input, gamma, beta], epsilon=float(eps))


def group_norm(
    b: Builder,
    input: Ref,
    num_groups: int,
    weight: Ref | None = None,
    bias: Ref | None = None,
    eps: float = 1e-5,
) -> Ref:
    """Instance normalization of the groups laid out as channels; then gamma and beta for each channel."""
    laid_out = b.emit("Reshape", [input, b.integers([0, num_groups, -1])])
    unit, none = b.constant(np.ones(num_groups, np.float32)), b.constant(np.zeros(num_groups, np.float32))
    normed = b.emit("InstanceNormalization", [laid_out, unit, none], epsilon=float(eps))
    shape = b.integers([-1 if isinstance(size, str) else int(size) for size in input.shape])
    along = b.integers([-1, *[1] * (input.ndim - 2)])
    if weight is None:
        return b.final("Reshape", [normed, shape])
    scaled = b.emit("Mul", [b.emit("Reshape", [normed, shape]), b.emit("Reshape", [weight, along])])
    if bias is None:
        return b.final("Identity", [scaled])
    return b.final("Add", [scaled, b.emit("Reshape", [bias, along])])


def local_response_norm(
    b: Builder,
    input: Ref,
    size: int,
    alpha: float = 1e-4,
    beta: float = 0.75,
    k: float = 1.0,
) -> Ref:
    if size % 2 == 0:
        raise DeployError(
            f"write {b.current!r}", f"a window of {size} channels", "ONNX and torch agree on odd ones only"
        )
    return b.final("LRN", [input], size=size, alpha=float(alpha), beta=float(beta), bias=float(k))

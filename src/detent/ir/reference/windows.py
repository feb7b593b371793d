"""Convolutions and pools."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from detent.ir.attributes import attribute_value
from detent.ir.reference.call import Kernel, KernelCall
from detent.ir.reference.padding import pad_asymmetric, pad_axes, window_places
from detent.ir.windows import SlidingWindow

__all__ = ["WINDOWS", "pool_counts", "pool_sums", "pool_windows"]

_CONV = (F.conv1d, F.conv2d, F.conv3d)
_CONV_TRANSPOSE = (F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d)
_MAX_POOL = (F.max_pool1d, F.max_pool2d, F.max_pool3d)


def _conv(call: KernelCall) -> Tensor:
    window = SlidingWindow.of(call.attributes, call[1].shape[2:])
    x, padding = pad_asymmetric(call[0], window)
    function = _CONV[window.rank - 1]
    return function(x, call[1], call.optional(2), window.strides, padding, window.dilations, call.attribute("group"))


def _conv_transpose(call: KernelCall) -> Tensor:
    window = SlidingWindow.of(call.attributes, call[1].shape[2:])
    if window.auto_pad != "NOTSET" or call.attribute("output_shape"):
        raise call.refusal("its output shape is given, or found by auto_pad")
    x, w, bias, function = call[0], call[1], call.optional(2), _CONV_TRANSPOSE[window.rank - 1]
    extra, groups = call.attribute("output_padding", window.rank), call.attribute("group")
    padding = window.begin if window.is_symmetric else (0,) * window.rank
    y = function(x, w, bias, window.strides, padding, extra, groups, window.dilations)
    return y if window.is_symmetric else pad_axes(y, [(-begin, -end) for begin, end in window.pads])


def _max_pool(call: KernelCall) -> Tensor:
    if call.outputs > 1:
        raise call.refusal("it gives indices")
    window = SlidingWindow.of(call.attributes).resolve(call[0].shape[2:])
    function = _MAX_POOL[window.rank - 1]
    if window.is_symmetric and all(begin <= size // 2 for begin, size in zip(window.begin, window.kernel, strict=True)):
        x, padding, ceil_mode = call[0], window.begin, window.ceil_mode
    else:
        pads = window.without_ceil_mode(call[0].shape[2:]).pads
        x, padding, ceil_mode = pad_axes(call[0], pads, -torch.inf), (0,) * window.rank, False
    return function(x, window.kernel, window.strides, padding, window.dilations, ceil_mode=ceil_mode)


def pool_windows(attributes: Mapping[str, Any], x: Tensor) -> tuple[list[Tensor], Tensor]:
    """An AveragePool, taken apart: for each place in the window, in order, what lies there (zeros outside of `x`),
    and how many elements each window divides by, in a shape that broadcasts."""
    window = SlidingWindow.of(attributes)
    counted = torch.ones((1, 1, *x.shape[2:]), dtype=x.dtype)
    of_counts = window.without_ceil_mode(x.shape[2:])
    if attribute_value("AveragePool", attributes, "count_include_pad"):
        declared = window.resolve(x.shape[2:])
        counted = pad_axes(counted, declared.pads, 1.0)
        beyond = tuple(end - own for end, own in zip(of_counts.end, declared.end, strict=True))
        of_counts = replace(of_counts, begin=(0,) * window.rank, end=beyond)
    return window_places(x, window), torch.stack(window_places(counted, of_counts)).sum(0)


def pool_sums(attributes: Mapping[str, Any], x: Tensor) -> Tensor:
    """The sum of each window of an AveragePool, zeros outside, added up in order as engines do."""
    first, *rest = pool_windows(attributes, x)[0]
    total = first.clone()
    for part in rest:
        total += part
    return total


def pool_counts(attributes: Mapping[str, Any], x: Tensor) -> Tensor:
    """How many elements each window of an AveragePool divides by; one batch and channel, to broadcast."""
    return pool_windows(attributes, x[:1, :1])[1]


def _average_pool(call: KernelCall) -> Tensor:
    return pool_sums(call.attributes, call[0]) / pool_counts(call.attributes, call[0])


def _col2im(call: KernelCall) -> Tensor:
    """Adds up overlapping blocks."""
    window = SlidingWindow.of(call.attributes, call.required_integers(2))
    if window.rank != 2 or not window.is_symmetric:
        raise call.refusal("torch folds images, and pads both sides alike")
    sizes = tuple(call.required_integers(1))
    return F.fold(call[0], sizes, window.kernel, dilation=window.dilations, padding=window.begin, stride=window.strides)


def _spatial(x: Tensor) -> tuple[int, ...]:
    return tuple(range(2, x.ndim))


WINDOWS: Mapping[str, Kernel] = {
    "AveragePool": _average_pool,
    "Col2Im": _col2im,
    "Conv": _conv,
    "ConvTranspose": _conv_transpose,
    "GlobalAveragePool": lambda call: call[0].mean(_spatial(call[0]), keepdim=True),
    "GlobalMaxPool": lambda call: call[0].amax(_spatial(call[0]), keepdim=True),
    "MaxPool": _max_pool,
}

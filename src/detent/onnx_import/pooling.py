"""Poolings."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from detent.onnx_import.call import Call, Converter
from detent.onnx_import.sizes import bounded
from detent.onnx_import.windows import Window, torch_pads, window_of

__all__ = ["CONVERTERS"]

_MAX = (F.max_pool1d, F.max_pool2d, F.max_pool3d)
_AVERAGE = (F.avg_pool1d, F.avg_pool2d, F.avg_pool3d)
_CONVS = (F.conv1d, F.conv2d, F.conv3d)


def _window(call: Call) -> Window:
    kernel = call.integers("kernel_shape")
    if not kernel:
        call.refuse("it has no kernel_shape", "export the model again")
    if max(kernel) > 2**16:
        call.refuse(f"the kernel {kernel}", "export the model again")
    return window_of(call, tuple(kernel))


def _max_pool(call: Call) -> Any:
    x, window, ceil = call.value(0), _window(call), bool(call.integer("ceil_mode"))
    fits = window.symmetric and all(2 * pad <= k for pad, k in zip(window.begin, window.kernel, strict=True))
    wants_indices = call.used(1)
    if fits and call.is_real() and not wants_indices and not ceil:
        return call.apply(
            _MAX[len(window.kernel) - 1],
            x,
            window.kernel,
            stride=window.strides,
            padding=window.begin,
            dilation=window.dilations,
        )
    if not wants_indices:
        return call.op(max_pool, x, kind="maxpool", **window._asdict(), ceil=ceil)
    if call.integer("storage_order") or not fits:
        call.refuse("indices in column order, or with such pads", "export the model without the second output")
    return call.parts(max_pool_indices, x, kind="maxpool", **window._asdict(), ceil=ceil)


def _padded(x: Tensor, window: Window, ceil: bool, value: float) -> Tensor:
    """With the pads, and with those rows that rounding the output size up reaches beyond them."""
    end = list(window.end)
    for axis, (k, s, d) in enumerate(zip(window.kernel, window.strides, window.dilations, strict=True)):
        size = x.shape[2 + axis] + window.begin[axis] + end[axis]
        span = size - (d * (k - 1) + 1)
        steps = span // s
        # A window that would begin in the padding at the end is not counted.
        if ceil and span % s and (steps + 1) * s < x.shape[2 + axis] + window.begin[axis]:
            end[axis] += s - span % s
    pads = zip(x.shape[2:], window.begin, end, strict=True)
    bounded([*x.shape[:2], *(size + before + after for size, before, after in pads)])
    return F.pad(x, torch_pads(window.begin, tuple(end)), value=value)


def max_pool(
    x: Tensor,
    *,
    kernel: tuple[int, ...],
    strides: tuple[int, ...],
    dilations: tuple[int, ...],
    begin: tuple[int, ...],
    end: tuple[int, ...],
    ceil: bool,
) -> Tensor:
    window = Window(kernel, strides, dilations, begin, end)
    values = x if x.is_floating_point() else x.double()
    padded = _padded(values, window, ceil, float("-inf"))
    return _MAX[len(kernel) - 1](padded, kernel, stride=strides, dilation=dilations).to(x.dtype)


def max_pool_indices(
    x: Tensor,
    *,
    kernel: tuple[int, ...],
    strides: tuple[int, ...],
    dilations: tuple[int, ...],
    begin: tuple[int, ...],
    end: tuple[int, ...],  # noqa: ARG001 (equal to `begin`)
    ceil: bool,
) -> tuple[Tensor, Tensor]:
    """Indices count through the whole tensor; torch's count through one plane."""
    pool: Any = _MAX[len(kernel) - 1]
    found, within = pool(
        x, kernel, stride=strides, padding=begin, dilation=dilations, ceil_mode=ceil, return_indices=True
    )
    planes = torch.arange(x.shape[0] * x.shape[1], device=x.device).reshape(x.shape[0], x.shape[1], *[1] * len(kernel))
    return found, within + planes * x[0, 0].numel()


def _average_pool(call: Call) -> Any:
    x, window, ceil = call.value(0), _window(call), bool(call.integer("ceil_mode"))
    include = bool(call.integer("count_include_pad"))
    fits = window.symmetric and all(2 * pad <= k for pad, k in zip(window.begin, window.kernel, strict=True))
    if fits and not ceil and set(window.dilations) == {1}:
        return call.apply(
            _AVERAGE[len(window.kernel) - 1],
            x,
            window.kernel,
            stride=window.strides,
            padding=window.begin,
            count_include_pad=include,
        )
    return call.op(average_pool, x, kind="avgpool", **window._asdict(), ceil=ceil, include=include)


def average_pool(
    x: Tensor,
    *,
    kernel: tuple[int, ...],
    strides: tuple[int, ...],
    dilations: tuple[int, ...],
    begin: tuple[int, ...],
    end: tuple[int, ...],
    ceil: bool,
    include: bool,
) -> Tensor:
    """Sums over windows by how many elements each window has: of the input, or with the pads included."""
    window = Window(kernel, strides, dilations, begin, end)
    ones = torch.ones_like(x[:1, :1])
    counted = F.pad(ones, torch_pads(begin, end), value=1.0) if include else ones
    bare = window._replace(begin=(0,) * len(kernel), end=(0,) * len(kernel))
    mask = _padded(ones, window, ceil, 0.0)
    if include:
        beyond = [now - was for now, was in zip(mask.shape[2:], counted.shape[2:], strict=True)]
        mask = F.pad(counted, torch_pads(bare.begin, tuple(beyond)))
    return _windowed(_padded(x, window, ceil, 0.0), window) / _windowed(mask, window)


def _windowed(x: Tensor, window: Window) -> Tensor:
    """The sum over each window."""
    channels = x.shape[1]
    ones = torch.ones(channels, 1, *window.kernel, dtype=x.dtype, device=x.device)
    conv = _CONVS[len(window.kernel) - 1]
    return conv(x, ones, stride=window.strides, dilation=window.dilations, groups=channels)


def _lp_pool(call: Call) -> Any:
    window, p, ceil = _window(call), call.integer("p", 2), bool(call.integer("ceil_mode"))
    return call.op(lp_pool, call.value(0), **window._asdict(), ceil=ceil, p=p)


def lp_pool(
    x: Tensor,
    *,
    kernel: tuple[int, ...],
    strides: tuple[int, ...],
    dilations: tuple[int, ...],
    begin: tuple[int, ...],
    end: tuple[int, ...],
    ceil: bool,
    p: int,
) -> Tensor:
    window = Window(kernel, strides, dilations, begin, end)
    return _windowed(_padded(x.abs() ** p, window, ceil, 0.0), window) ** (1 / p)


def _global_average(call: Call) -> Any:
    pools = {3: F.adaptive_avg_pool1d, 4: F.adaptive_avg_pool2d, 5: F.adaptive_avg_pool3d}
    rank = call.rank()
    if rank in pools:
        return call.apply(pools[rank], call.value(0), 1)
    return call.op(plane_mean, call.value(0), kind="global_avgpool")


def plane_mean(x: Tensor) -> Tensor:
    return x.mean(tuple(range(2, x.ndim)), keepdim=True)


def _global_max(call: Call) -> Any:
    pools = {3: F.adaptive_max_pool1d, 4: F.adaptive_max_pool2d, 5: F.adaptive_max_pool3d}
    rank = call.rank()
    if rank in pools:
        return call.apply(pools[rank], call.value(0), 1)
    return call.op(plane_max, call.value(0), kind="global_maxpool")


def plane_max(x: Tensor) -> Tensor:
    return x.amax(tuple(range(2, x.ndim)), keepdim=True)


def _global_lp(call: Call) -> Any:
    return call.op(plane_norm, call.value(0), p=call.integer("p", 2))


def plane_norm(x: Tensor, *, p: int) -> Tensor:
    return (x.abs() ** p).sum(tuple(range(2, x.ndim)), keepdim=True) ** (1 / p)


CONVERTERS: dict[str, Converter] = {
    "MaxPool": _max_pool,
    "AveragePool": _average_pool,
    "LpPool": _lp_pool,
    "GlobalAveragePool": _global_average,
    "GlobalMaxPool": _global_max,
    "GlobalLpPool": _global_lp,
}

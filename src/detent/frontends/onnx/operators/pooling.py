"""Poolings."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from detent.errors import OnnxError
from detent.frontends.onnx.call import Call, Converter
from detent.frontends.onnx.operators.windows import window_of
from detent.frontends.onnx.reading.sizes import bounded
from detent.ir.reference.padding import pad_axes
from detent.ir.windows import SlidingWindow

__all__ = ["CONVERTERS"]

_MAX = (F.max_pool1d, F.max_pool2d, F.max_pool3d)
_AVERAGE = (F.avg_pool1d, F.avg_pool2d, F.avg_pool3d)
_CONVS = (F.conv1d, F.conv2d, F.conv3d)


def _window(call: Call) -> SlidingWindow:
    kernel = call.integers("kernel_shape")
    if not kernel:
        call.refuse("it has no kernel_shape", "export the model again")
    if max(kernel) > 2**16:
        call.refuse(f"the kernel {kernel}", "export the model again")
    window, dims = window_of(call, tuple(kernel)), call.dims(0)
    if dims is not None and len(dims) == len(kernel) + 2:
        known = [size for size in dims[2:] if size is not None]
        if len(known) == len(kernel) and not _fits(known, window):
            call.refuse(f"a window of {window.extent} over {known} with its pads", "use a smaller kernel or dilation")
    return window


def _fits(sizes: Sequence[int], window: SlidingWindow) -> bool:
    return all(axis.slack >= 0 for axis in window.without_ceil_mode(sizes).along(sizes))


def _padded(x: Tensor, window: SlidingWindow, value: float) -> Tensor:
    sizes = list(x.shape[2:])
    if not _fits(sizes, window):
        raise OnnxError(
            f"pool {sizes} elements", f"a window of {window.extent}, which they do not fill", "give a larger input"
        )
    pads = window.without_ceil_mode(sizes).pads
    bounded([*x.shape[:2], *(size + sum(pad) for size, pad in zip(sizes, pads, strict=True))])
    return pad_axes(x, pads, value)


def _as_torch_has_it(window: SlidingWindow) -> bool:
    return window.is_symmetric and all(2 * pad <= k for pad, k in zip(window.begin, window.kernel, strict=True))


def _max_pool(call: Call) -> Any:
    x, window = call.value(0), _window(call)
    wants_indices, plain = call.used(1), _as_torch_has_it(window)
    if plain and call.is_real() and not wants_indices and not window.ceil_mode:
        return call.apply(
            _MAX[len(window.kernel) - 1],
            x,
            window.kernel,
            stride=window.strides,
            padding=window.begin,
            dilation=window.dilations,
        )
    if not wants_indices:
        return call.op(max_pool, x, kind="maxpool", window=window)
    if call.integer("storage_order") or not plain:
        call.refuse("indices in column order, or with such pads", "export the model without the second output")
    return call.parts(max_pool_indices, x, kind="maxpool", window=window)


def max_pool(x: Tensor, *, window: SlidingWindow) -> Tensor:
    values = x if x.is_floating_point() else x.double()
    padded = _padded(values, window, float("-inf"))
    pool = _MAX[len(window.kernel) - 1]
    return pool(padded, window.kernel, stride=window.strides, dilation=window.dilations).to(x.dtype)


def max_pool_indices(x: Tensor, *, window: SlidingWindow) -> tuple[Tensor, Tensor]:
    """Indices count through the whole tensor; torch's count through one plane. The pads are the same on both sides."""
    pool: Any = _MAX[window.rank - 1]
    found, within = pool(
        x,
        window.kernel,
        stride=window.strides,
        padding=window.begin,
        dilation=window.dilations,
        ceil_mode=window.ceil_mode,
        return_indices=True,
    )
    planes = torch.arange(x.shape[0] * x.shape[1], device=x.device).reshape(*x.shape[:2], *[1] * window.rank)
    return found, within + planes * x[0, 0].numel()


def _average_pool(call: Call) -> Any:
    x, window = call.value(0), _window(call)
    include = bool(call.integer("count_include_pad"))
    if _as_torch_has_it(window) and not window.ceil_mode and set(window.dilations) == {1}:
        return call.apply(
            _AVERAGE[len(window.kernel) - 1],
            x,
            window.kernel,
            stride=window.strides,
            padding=window.begin,
            count_include_pad=include,
        )
    return call.op(average_pool, x, kind="avgpool", window=window, include=include)


def average_pool(x: Tensor, *, window: SlidingWindow, include: bool) -> Tensor:
    """Sums over windows by how many elements each window has: of the input, or with the pads included."""
    ones = torch.ones_like(x[:1, :1])
    mask = _padded(ones, window, 0.0)
    if include:
        counted = pad_axes(ones, window.pads, 1.0)
        mask = pad_axes(counted, [(0, now - was) for now, was in zip(mask.shape[2:], counted.shape[2:], strict=True)])
    return _windowed(_padded(x, window, 0.0), window) / _windowed(mask, window)


def _windowed(x: Tensor, window: SlidingWindow) -> Tensor:
    """The sum over each window."""
    channels = x.shape[1]
    ones = torch.ones(channels, 1, *window.kernel, dtype=x.dtype, device=x.device)
    conv = _CONVS[len(window.kernel) - 1]
    return conv(x, ones, stride=window.strides, dilation=window.dilations, groups=channels)


def _lp_pool(call: Call) -> Any:
    window, p = _window(call), call.integer("p")
    return call.op(lp_pool, call.value(0), window=window, p=p)


def lp_pool(x: Tensor, *, window: SlidingWindow, p: int) -> Tensor:
    return _windowed(_padded(x.abs() ** p, window, 0.0), window) ** (1 / p)


def _global(pools: Mapping[Any, Callable[..., Any]], otherwise: Callable[..., Any], kind: str) -> Converter:
    """Over all of each plane: torch's function for images, ours for other ranks."""

    def convert(call: Call) -> Any:
        pool = pools.get(call.rank())
        return call.op(otherwise, call.value(0), kind=kind) if pool is None else call.apply(pool, call.value(0), 1)

    return convert


def plane_mean(x: Tensor) -> Tensor:
    return x.mean(tuple(range(2, x.ndim)), keepdim=True)


def plane_max(x: Tensor) -> Tensor:
    return x.amax(tuple(range(2, x.ndim)), keepdim=True)


_PLANE_MEANS = {3: F.adaptive_avg_pool1d, 4: F.adaptive_avg_pool2d, 5: F.adaptive_avg_pool3d}
_PLANE_MAXIMA = {3: F.adaptive_max_pool1d, 4: F.adaptive_max_pool2d, 5: F.adaptive_max_pool3d}


def _global_lp(call: Call) -> Any:
    return call.op(plane_norm, call.value(0), p=call.integer("p"))


def plane_norm(x: Tensor, *, p: int) -> Tensor:
    return (x.abs() ** p).sum(tuple(range(2, x.ndim)), keepdim=True) ** (1 / p)


CONVERTERS: dict[str, Converter] = {
    "MaxPool": _max_pool,
    "AveragePool": _average_pool,
    "LpPool": _lp_pool,
    "GlobalAveragePool": _global(_PLANE_MEANS, plane_mean, "global_avgpool"),
    "GlobalMaxPool": _global(_PLANE_MAXIMA, plane_max, "global_maxpool"),
    "GlobalLpPool": _global_lp,
}

"""Poolings."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from detent.errors import OnnxError
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
    window, dims = window_of(call, tuple(kernel)), call.dims(0)
    if dims is not None and len(dims) == len(kernel) + 2:
        known = [size for size in dims[2:] if size is not None]
        if len(known) == len(kernel) and not _fits(known, window, bool(call.integer("ceil_mode"))):
            call.refuse(f"a window of {window.reach} over {known} with its pads", "use a smaller kernel or dilation")
    return window


def _ends(sizes: Sequence[int], window: Window, ceil: bool) -> tuple[int, ...]:
    """The pads at the end, with those rows that rounding the output size up reaches beyond them."""
    ends = []
    for axis, (size, before, after) in enumerate(zip(sizes, window.begin, window.end, strict=True)):
        stride, span = window.strides[axis], size + before + after - window.reach[axis]
        # A window that would begin in the padding at the end is not counted.
        beyond = bool(ceil and span % stride and (span // stride + 1) * stride < size + before)
        ends.append(after + beyond * (stride - span % stride))
    return tuple(ends)


def _fits(sizes: Sequence[int], window: Window, ceil: bool) -> bool:
    padded = map(sum, zip(sizes, window.begin, _ends(sizes, window, ceil), strict=True))
    return all(size >= reach for size, reach in zip(padded, window.reach, strict=True))


def _padded(x: Tensor, window: Window, ceil: bool, value: float) -> Tensor:
    sizes = list(x.shape[2:])
    if not _fits(sizes, window, ceil):
        raise OnnxError(
            f"pool {sizes} elements", f"a window of {window.reach}, which they do not fill", "give a larger input"
        )
    end = _ends(sizes, window, ceil)
    bounded([*x.shape[:2], *map(sum, zip(sizes, window.begin, end, strict=True))])
    return F.pad(x, torch_pads(window.begin, end), value=value)


def _as_torch_has_it(window: Window) -> bool:
    return window.symmetric and all(2 * pad <= k for pad, k in zip(window.begin, window.kernel, strict=True))


def _max_pool(call: Call) -> Any:
    x, window, ceil = call.value(0), _window(call), bool(call.integer("ceil_mode"))
    wants_indices, plain = call.used(1), _as_torch_has_it(window)
    if plain and call.is_real() and not wants_indices and not ceil:
        return call.apply(
            _MAX[len(window.kernel) - 1],
            x,
            window.kernel,
            stride=window.strides,
            padding=window.begin,
            dilation=window.dilations,
        )
    if not wants_indices:
        return call.op(max_pool, x, kind="maxpool", window=window, ceil=ceil)
    if call.integer("storage_order") or not plain:
        call.refuse("indices in column order, or with such pads", "export the model without the second output")
    return call.parts(max_pool_indices, x, kind="maxpool", window=window, ceil=ceil)


def max_pool(x: Tensor, *, window: Window, ceil: bool) -> Tensor:
    values = x if x.is_floating_point() else x.double()
    padded = _padded(values, window, ceil, float("-inf"))
    pool = _MAX[len(window.kernel) - 1]
    return pool(padded, window.kernel, stride=window.strides, dilation=window.dilations).to(x.dtype)


def max_pool_indices(x: Tensor, *, window: Window, ceil: bool) -> tuple[Tensor, Tensor]:
    """Indices count through the whole tensor; torch's count through one plane. The pads are the same on both sides."""
    kernel, strides, dilations, pads, _ = window
    pool: Any = _MAX[len(kernel) - 1]
    found, within = pool(
        x, kernel, stride=strides, padding=pads, dilation=dilations, ceil_mode=ceil, return_indices=True
    )
    planes = torch.arange(x.shape[0] * x.shape[1], device=x.device).reshape(x.shape[0], x.shape[1], *[1] * len(kernel))
    return found, within + planes * x[0, 0].numel()


def _average_pool(call: Call) -> Any:
    x, window, ceil = call.value(0), _window(call), bool(call.integer("ceil_mode"))
    include = bool(call.integer("count_include_pad"))
    if _as_torch_has_it(window) and not ceil and set(window.dilations) == {1}:
        return call.apply(
            _AVERAGE[len(window.kernel) - 1],
            x,
            window.kernel,
            stride=window.strides,
            padding=window.begin,
            count_include_pad=include,
        )
    return call.op(average_pool, x, kind="avgpool", window=window, ceil=ceil, include=include)


def average_pool(x: Tensor, *, window: Window, ceil: bool, include: bool) -> Tensor:
    """Sums over windows by how many elements each window has: of the input, or with the pads included."""
    ones = torch.ones_like(x[:1, :1])
    mask = _padded(ones, window, ceil, 0.0)
    if include:
        counted = F.pad(ones, torch_pads(window.begin, window.end), value=1.0)
        beyond = tuple(now - was for now, was in zip(mask.shape[2:], counted.shape[2:], strict=True))
        mask = F.pad(counted, torch_pads((0,) * len(beyond), beyond))
    return _windowed(_padded(x, window, ceil, 0.0), window) / _windowed(mask, window)


def _windowed(x: Tensor, window: Window) -> Tensor:
    """The sum over each window."""
    channels = x.shape[1]
    ones = torch.ones(channels, 1, *window.kernel, dtype=x.dtype, device=x.device)
    conv = _CONVS[len(window.kernel) - 1]
    return conv(x, ones, stride=window.strides, dilation=window.dilations, groups=channels)


def _lp_pool(call: Call) -> Any:
    window, p, ceil = _window(call), call.integer("p", 2), bool(call.integer("ceil_mode"))
    return call.op(lp_pool, call.value(0), window=window, ceil=ceil, p=p)


def lp_pool(x: Tensor, *, window: Window, ceil: bool, p: int) -> Tensor:
    return _windowed(_padded(x.abs() ** p, window, ceil, 0.0), window) ** (1 / p)


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
    return call.op(plane_norm, call.value(0), p=call.integer("p", 2))


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

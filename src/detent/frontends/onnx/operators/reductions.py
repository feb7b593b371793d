"""Reductions along axes, ArgMax, ArgMin and TopK."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from detent.frontends.onnx.builder import Constant
from detent.frontends.onnx.call import Call, Converter

__all__ = ["CONVERTERS"]

_AXES_SINCE = {"ReduceSum": 13}  # the opset in which axes became an input; 18 for all others


def _reduce(function: Callable[..., Tensor], kind: str = "") -> Converter:
    def convert(call: Call) -> Any:
        x, keep = call.value(0), bool(call.integer("keepdims"))
        if call.opset < _AXES_SINCE.get(call.node.op_type, 18):
            axes = call.integers("axes")
        elif call.has(1) and call.constant(1) is None:
            nothing = bool(call.integer("noop_with_empty_axes"))
            return call.op(reduce_computed, x, call.value(1), kind=kind, function=function, keep=keep, nothing=nothing)
        else:
            axes = call.numbers(1)
        if not axes and call.integer("noop_with_empty_axes"):
            return call.op(function, x, axes=[], keep=True)
        return _with_axes(call, function, kind, axes, keep)

    return convert


def _with_axes(call: Call, function: Callable[..., Tensor], kind: str, axes: list[int] | None, keep: bool) -> Any:
    x, rank = call.value(0), call.rank()
    if not axes and rank is not None:
        axes = list(range(rank))
    torch_function = {reduce_mean: torch.mean, reduce_sum: torch.sum}.get(function)
    if torch_function is not None and axes and call.is_real():
        return call.apply(torch_function, x, dim=tuple(axes), keepdim=keep)
    return call.op(function, x, kind=kind, axes=axes or None, keep=keep)


def reduce_computed(x: Tensor, axes: Tensor, *, function: Callable[..., Tensor], keep: bool, nothing: bool) -> Tensor:
    given = [int(axis) for axis in axes.tolist()]
    if not given and nothing:
        return function(x, axes=[], keep=True)
    return function(x, axes=given or None, keep=keep)


def _each(x: Tensor, axes: list[int] | None) -> tuple[int, ...]:
    return tuple(range(x.ndim)) if axes is None else tuple(axis % x.ndim for axis in axes)


def reduce_sum(x: Tensor, *, axes: list[int] | None, keep: bool) -> Tensor:
    """Along no axes, where an empty list means that, nothing is summed."""
    return x if axes == [] or x.ndim == 0 else x.sum(_each(x, axes), keepdim=keep).to(x.dtype)


def reduce_mean(x: Tensor, *, axes: list[int] | None, keep: bool) -> Tensor:
    return x if axes == [] or x.ndim == 0 else x.mean(_each(x, axes), keepdim=keep)


def reduce_max(x: Tensor, *, axes: list[int] | None, keep: bool) -> Tensor:
    return _extreme(x, axes, keep, largest=True)


def reduce_min(x: Tensor, *, axes: list[int] | None, keep: bool) -> Tensor:
    return _extreme(x, axes, keep, largest=False)


def _extreme(x: Tensor, axes: list[int] | None, keep: bool, *, largest: bool) -> Tensor:
    """For an empty input, the minimum or maximum of the type."""
    if axes == []:
        return x
    at = _each(x, axes)
    if any(x.shape[axis] == 0 for axis in at):
        shape = [1 if axis in at else size for axis, size in enumerate(x.shape)]
        empty: float = float("-inf") if largest else float("inf")
        if x.dtype == torch.bool:
            empty = not largest
        elif not x.is_floating_point():
            empty = torch.iinfo(x.dtype).min if largest else torch.iinfo(x.dtype).max
        full = torch.full(shape, empty, dtype=x.dtype, device=x.device)
        return full if keep else full.reshape([size for axis, size in enumerate(shape) if axis not in at])
    values = x.to(torch.uint8) if x.dtype == torch.bool else x
    return (values.amax if largest else values.amin)(at, keepdim=keep).to(x.dtype)


def reduce_product(x: Tensor, *, axes: list[int] | None, keep: bool) -> Tensor:
    if axes == []:
        return x
    result = x
    for axis in sorted(_each(x, axes), reverse=True):
        result = result.prod(axis, keepdim=keep)
    return result.to(x.dtype)


def reduce_l1(x: Tensor, *, axes: list[int] | None, keep: bool) -> Tensor:
    return reduce_sum(x.abs(), axes=axes, keep=keep)


def reduce_l2(x: Tensor, *, axes: list[int] | None, keep: bool) -> Tensor:
    return reduce_sum(x * x, axes=axes, keep=keep).sqrt().to(x.dtype)


def reduce_sum_square(x: Tensor, *, axes: list[int] | None, keep: bool) -> Tensor:
    return reduce_sum(x * x, axes=axes, keep=keep)


def reduce_log_sum(x: Tensor, *, axes: list[int] | None, keep: bool) -> Tensor:
    return reduce_sum(x, axes=axes, keep=keep).log()


def reduce_log_sum_exp(x: Tensor, *, axes: list[int] | None, keep: bool) -> Tensor:
    return x if axes == [] else torch.logsumexp(x, _each(x, axes), keepdim=keep)


def _argument(largest: bool) -> Converter:
    def convert(call: Call) -> Any:
        axis, keep = call.integer("axis"), bool(call.integer("keepdims"))
        last = bool(call.integer("select_last_index"))
        return call.op(argument, call.value(0), kind="compare", axis=axis, keep=keep, last=last, largest=largest)

    return convert


def argument(x: Tensor, *, axis: int, keep: bool, last: bool, largest: bool) -> Tensor:
    """The first place of the extreme value, or the last one."""
    values = x.flip(axis) if last else x
    extreme = values.amax(axis, keepdim=True) if largest else values.amin(axis, keepdim=True)
    place = (values == extreme).to(torch.uint8).argmax(axis, keepdim=True)
    place = x.shape[axis] - 1 - place if last else place
    return place if keep else place.squeeze(axis)


def _top_k(call: Call) -> Any:
    axis, largest = call.integer("axis"), bool(call.integer("largest"))
    count = Constant(torch.tensor(call.integer("k"))) if call.opset < 10 else call.value(1)
    return call.parts(top_k, call.value(0), count, axis=axis, largest=largest)


def top_k(x: Tensor, k: Tensor, *, axis: int, largest: bool) -> tuple[Tensor, Tensor]:
    """Sorted; of equal values the one with the lower index comes first."""
    values, indices = torch.sort(x, dim=axis, descending=largest, stable=True)
    count = int(k)
    return values.narrow(axis, 0, count), indices.narrow(axis, 0, count)


CONVERTERS: dict[str, Converter] = {
    "ReduceSum": _reduce(reduce_sum, "sum"),
    "ReduceMean": _reduce(reduce_mean, "mean"),
    "ReduceMax": _reduce(reduce_max),
    "ReduceMin": _reduce(reduce_min),
    "ReduceProd": _reduce(reduce_product),
    "ReduceL1": _reduce(reduce_l1),
    "ReduceL2": _reduce(reduce_l2),
    "ReduceSumSquare": _reduce(reduce_sum_square),
    "ReduceLogSum": _reduce(reduce_log_sum),
    "ReduceLogSumExp": _reduce(reduce_log_sum_exp),
    "ArgMax": _argument(largest=True),
    "ArgMin": _argument(largest=False),
    "TopK": _top_k,
}

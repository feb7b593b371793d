"""Reductions over axes or over several tensors, and ArgMax and ArgMin."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import reduce

import torch
from torch import Tensor

from detent.ir.reference.call import Kernel, KernelCall

__all__ = ["REDUCTIONS"]


def _over_axes(function: Callable[..., Tensor]) -> Kernel:
    def reduced(call: KernelCall) -> Tensor:
        axes = call.integers(1, "axes")
        if not axes and call.attribute("noop_with_empty_axes"):
            return call[0]
        return function(call[0], tuple(axes or range(call[0].ndim)), keepdim=bool(call.attribute("keepdims")))

    return reduced


def _of_all(function: Callable[[Tensor, Tensor], Tensor]) -> Callable[[KernelCall], Tensor]:
    return lambda call: reduce(function, call.present)


def _place(function: Callable[..., Tensor]) -> Kernel:
    def found(call: KernelCall) -> Tensor:
        if call.attribute("select_last_index"):
            raise call.refusal("it asks for the last of equal values")
        return function(call[0], call.attribute("axis"), bool(call.attribute("keepdims")))

    return found


def _top_k(call: KernelCall) -> tuple[Tensor, Tensor]:
    (count,) = call.required_integers(1)
    values, places = torch.topk(call[0], count, call.attribute("axis"), bool(call.attribute("largest")))
    return values, places


def _cumulative_sum(call: KernelCall) -> Tensor:
    (axis,) = call.required_integers(1)
    x = call[0].flip(axis) if call.attribute("reverse") else call[0]
    total = x.cumsum(axis)
    if call.attribute("exclusive"):
        first = torch.zeros_like(total.narrow(axis, 0, 1))
        total = torch.cat([first, total.narrow(axis, 0, total.shape[axis] - 1)], axis)
    return total.flip(axis) if call.attribute("reverse") else total


REDUCTIONS: Mapping[str, Kernel] = {
    "ArgMax": _place(torch.argmax),
    "ArgMin": _place(torch.argmin),
    "CumSum": _cumulative_sum,
    "Max": _of_all(torch.maximum),
    "Mean": lambda call: _of_all(torch.add)(call) / len(call.present),
    "Min": _of_all(torch.minimum),
    "ReduceL1": _over_axes(lambda x, dims, *, keepdim: x.abs().sum(dims, keepdim)),
    "ReduceL2": _over_axes(lambda x, dims, *, keepdim: (x * x).sum(dims, keepdim).sqrt()),
    "ReduceLogSum": _over_axes(lambda x, dims, *, keepdim: x.sum(dims, keepdim).log()),
    "ReduceLogSumExp": _over_axes(torch.logsumexp),
    "ReduceMax": _over_axes(torch.amax),
    "ReduceMean": _over_axes(torch.mean),
    "ReduceMin": _over_axes(torch.amin),
    "ReduceSum": _over_axes(torch.sum),
    "ReduceSumSquare": _over_axes(lambda x, dims, *, keepdim: (x * x).sum(dims, keepdim)),
    "Sum": _of_all(torch.add),
    "TopK": _top_k,
}

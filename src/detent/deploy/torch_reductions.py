"""ONNX operations that make one value of many, as torch functions: over axes, of several tensors, the place of one."""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce

import torch
import torch.nn.functional as F
from torch import Tensor

from detent.deploy.torch_call import Call, Function

__all__ = ["REDUCTIONS"]


def _over_axes(function: Callable[..., Tensor]) -> Function:
    def reduced(call: Call) -> Tensor:
        axes = call.integers(1)
        axes = call.get("axes") if axes is None else axes
        if axes is None and call.get("noop_with_empty_axes", 0):
            return call[0]
        dims = tuple(range(call[0].ndim)) if axes is None else tuple(axes)
        return function(call[0], dims, keepdim=bool(call.get("keepdims", 1)))

    return reduced


def _of_all(function: Callable[[Tensor, Tensor], Tensor]) -> Function:
    return lambda call: reduce(function, [call[index] for index in range(len(call.values))])


def _mean(call: Call) -> Tensor:
    total: Tensor = _of_all(torch.add)(call)  # type: ignore[assignment]
    return total / len(call.values)


def _place(function: Callable[..., Tensor]) -> Function:
    def found(call: Call) -> Tensor:
        axis, keepdim = call.get("axis", 0), bool(call.get("keepdims", 1))
        if call.get("select_last_index", 0):
            raise call.refusal("it wants the last of equal ones")
        return function(call[0], axis, keepdim)

    return found


def _top_k(call: Call) -> tuple[Tensor, Tensor]:
    (count,) = call.required_integers(1)
    values, places = torch.topk(call[0], count, call.get("axis", -1), bool(call.get("largest", 1)))
    return values, places


def _cumulative(call: Call) -> Tensor:
    (axis,) = call.required_integers(1)
    x = call[0].flip(axis) if call.get("reverse", 0) else call[0]
    total = x.cumsum(axis)
    if call.get("exclusive", 0):
        first = torch.zeros_like(total.narrow(axis, 0, 1))
        total = torch.cat([first, total.narrow(axis, 0, total.shape[axis] - 1)], axis)
    return total.flip(axis) if call.get("reverse", 0) else total


def _fold(call: Call) -> Tensor:
    """Blocks added up where they overlap."""
    sizes, block = tuple(call.required_integers(1)), tuple(call.required_integers(2))
    rank = len(block)
    pads = call.get("pads", [0] * 2 * rank)
    if rank != 2 or pads[:rank] != pads[rank:]:
        raise call.refusal("torch folds images, and pads both sides alike")
    strides, dilations = call.get("strides", [1] * rank), call.get("dilations", [1] * rank)
    return F.fold(call[0], sizes, block, dilation=dilations, padding=pads[:rank], stride=strides)


REDUCTIONS: dict[str, Function] = {
    "ArgMax": _place(torch.argmax),
    "ArgMin": _place(torch.argmin),
    "Col2Im": _fold,
    "CumSum": _cumulative,
    "Einsum": lambda call: torch.einsum(call.get("equation"), *[call[index] for index in range(len(call.values))]),
    "Max": _of_all(torch.maximum),
    "Mean": _mean,
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
"""By ONNX operation type."""

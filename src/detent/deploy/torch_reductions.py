"""ONNX operations that make one value of many, as torch functions: over axes, of several tensors, the place of one."""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce

import torch
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


REDUCTIONS: dict[str, Function] = {
    "ArgMax": _place(torch.argmax),
    "ArgMin": _place(torch.argmin),
    "Max": _of_all(torch.maximum),
    "Mean": _mean,
    "Min": _of_all(torch.minimum),
    "ReduceL1": _over_axes(lambda x, dims, *, keepdim: x.abs().sum(dims, keepdim)),
    "ReduceL2": _over_axes(lambda x, dims, *, keepdim: (x * x).sum(dims, keepdim).sqrt()),
    "ReduceMax": _over_axes(torch.amax),
    "ReduceMean": _over_axes(torch.mean),
    "ReduceMin": _over_axes(torch.amin),
    "ReduceSum": _over_axes(torch.sum),
    "ReduceSumSquare": _over_axes(lambda x, dims, *, keepdim: (x * x).sum(dims, keepdim)),
    "Sum": _of_all(torch.add),
    "TopK": _top_k,
}
"""By ONNX operation type."""

"""Operations that do not round: the error of an output value is that of the input values that it may be."""

from __future__ import annotations

import torch
from onnx import TensorProto
from torch import Tensor

from detent.ir.network import Op
from detent.ir.ops import Trait, ops_with
from detent.ir.roundoff.error_bound import ErrorBound, Errors, FloatKernel, Inputs, is_certain

__all__ = ["exact", "greatest"]

_ON_EACH = ops_with(Trait.EXACT | Trait.ELEMENTWISE) | {"Cast", "Dropout", "Identity"}


def exact(op: Op, kernel: FloatKernel, inputs: Inputs, values: tuple[Tensor, ...]) -> Errors:
    return [None] * len(values) if is_certain(inputs) else _moved(op, kernel, inputs)


def greatest(op: Op, kernel: FloatKernel, inputs: Inputs, values: tuple[Tensor, ...]) -> Errors:
    """Of TopK: each number moves by no more than the one that moves farthest. Which place it has is open where the next
    greater or smaller one is within their errors; of equal numbers engines take any first."""
    del kernel
    x = inputs[0]
    assert x is not None
    axis = int(op.attribute("axis"))
    farthest = x.spread.amax(axis, keepdim=True)
    ordered = x.value.sort(axis, descending=bool(op.attribute("largest"))).values
    near = ordered.diff(dim=axis).abs() <= 2 * farthest
    none = (
        torch.zeros_like(near.narrow(axis, 0, 1)) if near.shape[axis] else torch.zeros_like(ordered, dtype=torch.bool)
    )
    open_ = torch.cat([none, near], axis) | torch.cat([near, none], axis)
    places = torch.where(open_.narrow(axis, 0, values[1].shape[axis]), torch.inf, 0.0)
    return [None if x.error is None else farthest.expand_as(values[0]), places]


def _moved(op: Op, kernel: FloatKernel, inputs: Inputs) -> list[Tensor]:
    errors = [None if each is None else _spread_of(each) for each in inputs]
    values = [None if each is None else each.value for each in inputs]
    first = errors[0]
    assert first is not None
    if op.type == "Cast" and op.attributes["to"] == TensorProto.FLOAT16:
        assert values[0] is not None
        return [first + torch.finfo(torch.float16).eps * values[0].abs()]  # to the next number of 16 bits
    if op.type in _ON_EACH:
        return [first]
    if op.type in ("Max", "Min"):
        for error in errors[1:]:
            assert error is not None
            first = torch.maximum(first, error)
        return [first]
    if op.type == "ReduceMin":
        return [-kernel(-first, *values[1:])]
    if op.type == "Pad":
        return [kernel(first, *[None if place == 1 else value for place, value in enumerate(values[1:])])]
    moved = kernel(*errors) if op.type in ("Concat", "Where") else kernel(first, *values[1:])
    return [moved] if isinstance(moved, Tensor) else list(moved)


def _spread_of(each: ErrorBound) -> Tensor:
    """The error of real numbers; indices and conditions have none."""
    return each.spread if each.value.is_floating_point() else each.value

"""Bounds on the difference of two float32 computations of a function, a softmax or a normalization.

Each bound is computed from the operation, its kernel, its inputs and its outputs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import product

import torch
from torch import Tensor

from detent.ir.network import Op
from detent.ir.ops import Trait, ops_with
from detent.ir.roundoff.error_bound import FUNCTION, UNIT, ErrorBound, Errors, FloatKernel, Inputs, Rule, of_finite

__all__ = ["FUNCTIONS"]

_EXP_IS_ZERO = 256
"""exp(-x) of float32 is 0 from 104 on; the rest is room for the error of the largest number."""
_THROUGH_ONE = ops_with(Trait.THROUGH_ONE)


def _on_each(op: Op, kernel: FloatKernel, inputs: list[ErrorBound], value: Tensor) -> Tensor:
    """A function of corresponding elements of its inputs: its own round-off, and how much it changes if each input
    changes by its error."""
    largest = value.abs().clamp_min(float(op.type in _THROUGH_ONE))
    for each in inputs:
        largest = torch.maximum(largest, each.value.abs())
    error = FUNCTION * largest
    if all(each.error is None for each in inputs):
        return error
    moved = torch.zeros_like(value)
    for signs in product((-1, 1), repeat=len(inputs)):
        shifted = kernel(*(each.value + sign * each.spread for each, sign in zip(inputs, signs, strict=True)))
        moved = torch.maximum(moved, (shifted - value).abs().nan_to_num(torch.inf))
    return error + moved


def _quotient(op: Op, kernel: FloatKernel, inputs: list[ErrorBound], value: Tensor) -> Tensor:
    """Engines may multiply by the reciprocal, which is rounded too."""
    del op, kernel
    over, under = inputs
    error = 6 * UNIT * value.abs()
    if over.error is None and under.error is None:
        return error
    least = (under.value.abs() - under.spread).clamp_min(0)
    moved = (over.value.abs() + over.spread) / least - over.value.abs() / under.value.abs()
    return error + moved.nan_to_num(torch.inf)


def _softmax(op: Op, kernel: FloatKernel, inputs: list[ErrorBound], value: Tensor) -> Tensor:
    """The argument of exp has an error of its own size, and the sum one for each of its terms."""
    del kernel
    axis, (x,) = int(op.attribute("axis")), inputs
    below = x.value.amax(axis, keepdim=True) - x.value
    error = 2 * UNIT * (value.shape[axis] + 16 + below.nan_to_num(0.0, posinf=0.0)) * value
    if x.error is not None:
        # Of what a mask hides, exp is 0 anywhere within an error that is relative to the mask's least float32.
        reached = torch.where(below - 2 * x.error > _EXP_IS_ZERO, 0.0, x.error).amax(axis, keepdim=True)
        error = error + (value * torch.expm1(2 * reached)).nan_to_num(torch.inf, posinf=torch.inf)
    return error


def _log_softmax(op: Op, kernel: FloatKernel, inputs: list[ErrorBound], value: Tensor) -> Tensor:
    del kernel
    axis, (x,) = int(op.attribute("axis")), inputs
    error = 2 * UNIT * (value.shape[axis] + 16 + 4 * x.value.abs().amax(axis, keepdim=True))
    return error.expand(value.shape) + 2 * x.spread.amax(axis, keepdim=True)


def _layer_norm(op: Op, kernel: FloatKernel, inputs: list[ErrorBound], value: Tensor) -> Tensor:
    del kernel
    x = inputs[0]
    first = int(op.attribute("axis")) % x.value.ndim
    gain, shift = inputs[1].value, inputs[2].value if len(inputs) > 2 else torch.zeros(())
    return _normed(op, x, x, tuple(range(first, x.value.ndim)), gain, shift, value)


def _instance_norm(op: Op, kernel: FloatKernel, inputs: list[ErrorBound], value: Tensor) -> Tensor:
    del kernel
    x, gain, shift = inputs
    along = (1, -1, *[1] * (x.value.ndim - 2))
    dims = tuple(range(2, x.value.ndim))
    return _normed(op, x, x, dims, gain.value.reshape(along), shift.value.reshape(along), value)


def _group_norm(op: Op, kernel: FloatKernel, inputs: list[ErrorBound], value: Tensor) -> Tensor:
    del kernel
    x, gain, shift = inputs
    groups, along = int(op.attributes["num_groups"]), (1, -1, *[1] * (x.value.ndim - 2))
    shape = (x.value.shape[0], groups, -1)
    grouped = ErrorBound(x.value.reshape(shape), None if x.error is None else x.error.reshape(shape))
    return _normed(op, x, grouped, (2,), gain.value.reshape(along), shift.value.reshape(along), value)


def _normed(
    op: Op, x: ErrorBound, grouped: ErrorBound, dims: tuple[int, ...], gain: Tensor, shift: Tensor, value: Tensor
) -> Tensor:
    """Of `(x - mean) / deviation * gain + shift`, means over `dims` of `grouped`.

    Some engines compute the variance as mean(x^2) - mean^2, whose error is relative to mean(x^2).
    """
    numbers, spread = grouped.value.double(), grouped.spread.double()
    count = numbers.numel() // max(numbers.sum(dims).numel(), 1) + 3
    mean = numbers.mean(dims, keepdim=True)
    variance = (numbers - mean).square().mean(dims, keepdim=True) + float(op.attribute("epsilon"))
    deviation = variance.sqrt()
    normal = ((numbers - mean) / deviation).abs()
    of_mean = count * UNIT * (numbers.abs() + numbers.abs().mean(dims, keepdim=True))
    of_variance = count * UNIT * (1 + 2 * numbers.square().mean(dims, keepdim=True) / variance)
    own = of_mean / deviation + normal * (of_variance + 4 * UNIT)
    # The derivative: each number, the mean, and the deviation move.
    pull = (normal * spread).mean(dims, keepdim=True)
    passed = (spread + spread.mean(dims, keepdim=True) + normal * pull) / deviation
    return (2 * own + 2 * passed).reshape(x.value.shape) * gain.abs() + 8 * UNIT * (value.abs() + shift.abs())


def _batch_norm(op: Op, kernel: FloatKernel, inputs: list[ErrorBound], value: Tensor) -> Tensor:
    """`(x - mean) * factor + shift`, or with the mean taken into the shift."""
    del kernel
    x, gain, shift, mean, variance = inputs
    along = (1, -1, *[1] * (x.value.ndim - 2))
    factor = (gain.value / (variance.value + float(op.attribute("epsilon"))).sqrt()).abs().reshape(along)
    sizes = (x.value.abs() + mean.value.abs().reshape(along)) * factor + shift.value.abs().reshape(along)
    return 12 * UNIT * (sizes + value.abs()) + x.spread * factor


_BOUNDS: Mapping[str, Callable[[Op, FloatKernel, list[ErrorBound], Tensor], Tensor]] = {
    **dict.fromkeys(ops_with(Trait.ELEMENTWISE) - ops_with(Trait.EXACT) | {"PRelu", "Pow"}, _on_each),
    "BatchNormalization": _batch_norm,
    "Div": _quotient,
    "GroupNormalization": _group_norm,
    "InstanceNormalization": _instance_norm,
    "LayerNormalization": _layer_norm,
    "LogSoftmax": _log_softmax,
    "Softmax": _softmax,
}


def _bound(op: Op, kernel: FloatKernel, inputs: Inputs, values: tuple[Tensor, ...]) -> Errors:
    present = [each for each in inputs if each is not None]
    return [of_finite(_BOUNDS[op.type](op, kernel, present, values[0]), values[0])]


FUNCTIONS: Mapping[str, Rule] = dict.fromkeys(_BOUNDS, _bound)

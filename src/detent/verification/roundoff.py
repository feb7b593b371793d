"""How far two float32 computations of one operation may be apart, element by element.

Float32 sums have no order that ONNX prescribes. Whatever the order, and whether products are fused with additions or
not, a sum of n products is off by at most `gamma(n) * sum |a * b|` (Higham, Accuracy and Stability of Numerical
Algorithms, section 3.1): the operation itself on absolute values gives the second factor. Two computations are apart
by twice that. An operation that reads numbers that are uncertain themselves passes their uncertainty on.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from math import prod

import torch
import torch.nn.functional as F
from onnx import TensorProto
from torch import Tensor

from detent.ir import Op, Trait, ops_with
from detent.twin.arithmetic import Kernel
from detent.twin.float_ops import compute, only_moves
from detent.verification.error_bound import UNIT, ErrorBound
from detent.verification.roundoff_functions import FUNCTIONS
from detent.verification.roundoff_recurrent import RECURRENT, recurrent_errors

__all__ = ["possible", "rounds"]

_UNKNOWN = 2.0**-16
"""Of the largest number, where nothing is known of an operation: 256 roundings of it."""

_SAYS_LITTLE = 2.0**-6
"""Of numbers between -1 and 1."""

_Inputs = Sequence[ErrorBound | None]


def rounds(op: Op) -> bool:
    """Whether what it gives may be a number that none of its inputs holds, and so one that is rounded."""
    return not (only_moves(op) or op.type in ops_with(Trait.EXACT))


def possible(op: Op, kernel: Kernel, inputs: _Inputs) -> tuple[ErrorBound, ...]:
    """What `op` gives, in the order of its outputs."""
    results = kernel(*(None if each is None else each.value for each in inputs))
    values: tuple[Tensor, ...] = (results,) if isinstance(results, Tensor) else tuple(results)
    certain = all(each is None or each.error is None for each in inputs)
    if not values[0].is_floating_point():
        return tuple(ErrorBound(value) for value in values)
    if not rounds(op):
        errors = [None] * len(values) if certain else _moved(op, kernel, inputs)
        return tuple(ErrorBound(*pair) for pair in zip(values, errors, strict=True))
    if op.type in _TERMS and op.attributes.get("mode") != "cubic":  # of which some shares are negative
        error = _summed(op, kernel, inputs, values[0], certain=certain)
    elif op.type in FUNCTIONS:
        error = FUNCTIONS[op.type](op, kernel, [each for each in inputs if each is not None], values[0])
    elif op.type in RECURRENT and (grown := recurrent_errors(op, inputs)) is not None:
        return tuple(_recurrent(*pair, certain=certain) for pair in zip(values, grown, strict=True))
    else:
        return tuple(_unknown(value, certain=certain) for value in values)
    # Infinities (a mask) and what is no number are the same in every order.
    return (ErrorBound(values[0], torch.where(values[0].isfinite(), error.to(values[0].dtype), 0.0)),)


def _unknown(value: Tensor, *, certain: bool) -> ErrorBound:
    largest = float(torch.where(value.isfinite(), value, 0.0).abs().amax()) if value.numel() else 0.0
    return ErrorBound(value, torch.full_like(value, _UNKNOWN * largest if certain else torch.inf))


def _recurrent(value: Tensor, error: Tensor, *, certain: bool) -> ErrorBound:
    """Of a long sequence, or one with many numbers, what can be proven says little at its end."""
    guessed = _unknown(value, certain=certain).spread
    return ErrorBound(value, torch.where(error > _SAYS_LITTLE, torch.minimum(error, guessed), error).to(value.dtype))


# ---- moves: nothing is rounded, and a number is as uncertain as those that it may come from

_ON_EACH = ops_with(Trait.EXACT | Trait.ELEMENTWISE) | {"Cast", "Dropout", "Identity"}


def _moved(op: Op, kernel: Kernel, inputs: _Inputs) -> list[Tensor]:
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
    """Of real numbers; indices and conditions are as they are."""
    return each.spread if each.value.is_floating_point() else each.value


# ---- sums of products: linear in each input

_TERMS: Mapping[str, Callable[[Op, _Inputs, Tensor], int]] = {
    "Add": lambda _op, _inputs, _value: 2,
    "AveragePool": lambda op, _inputs, _value: prod(op.attributes["kernel_shape"]) + 1,
    "Conv": lambda _op, inputs, _value: prod(_shape(inputs[1])[1:]) + 1,
    "ConvTranspose": lambda _op, inputs, _value: _shape(inputs[1])[0] * prod(_shape(inputs[1])[2:]) + 1,
    "Gemm": lambda op, inputs, _value: _shape(inputs[1])[1 if op.attribute("transB") else 0] + 3,
    "GlobalAveragePool": lambda _op, inputs, _value: prod(_shape(inputs[0])[2:]) + 1,
    "MatMul": lambda _op, inputs, _value: _shape(inputs[0])[-1] + 1,
    "Mean": lambda _op, inputs, _value: len(inputs) + 1,
    "Mul": lambda _op, _inputs, _value: 2,
    "ReduceMean": lambda _op, inputs, value: prod(_shape(inputs[0])) // max(value.numel(), 1) + 1,
    "ReduceSum": lambda _op, inputs, value: prod(_shape(inputs[0])) // max(value.numel(), 1),
    # Eight corners, each with a share as uncertain as a coordinate, which counts pixels.
    "Resize": lambda _op, inputs, value: 8 + 2 * max(*_shape(inputs[0]), *value.shape),
    "Sub": lambda _op, _inputs, _value: 2,
    "Sum": lambda _op, inputs, _value: len(inputs),
}
"""How many roundings a number goes through at most."""


def _shape(each: ErrorBound | None) -> torch.Size:
    assert each is not None
    return each.value.shape


def _summed(op: Op, kernel: Kernel, inputs: _Inputs, value: Tensor, *, certain: bool) -> Tensor:
    """On absolute values the operation gives what its roundings are relative to, and on absolute values with errors
    what these may add to it."""
    terms = _TERMS[op.type](op, inputs, value)
    # A small difference of two sums is wanted where inputs are uncertain.
    sizes = [None if each is None else _size(each.value, double=not certain) for each in inputs]
    if op.type == "Resize" and sizes[0] is not None:
        sizes[0] = _of_neighbours(sizes[0])
    size = _absolute(op, kernel, sizes)
    error = 2 * (terms * UNIT / (1 - terms * UNIT)) * size
    if certain:
        return error
    wider = [
        own if each is None or own is None or each.error is None else own + each.error
        for own, each in zip(sizes, inputs, strict=True)
    ]
    return error + (_absolute(op, kernel, wider) - size)


def _size(value: Tensor, *, double: bool) -> Tensor:
    if not value.is_floating_point():
        return value
    return value.double().abs() if double else value.abs()


def _of_neighbours(size: Tensor) -> Tensor:
    """Where a pixel's share is 1, that of the next one is a rounding away from 0."""
    pool = {3: F.max_pool1d, 4: F.max_pool2d, 5: F.max_pool3d}.get(size.ndim)
    return size.amax() + torch.zeros_like(size) if pool is None else pool(size, 3, 1, 1)


def _absolute(op: Op, kernel: Kernel, arguments: Sequence[Tensor | None]) -> Tensor:
    found: Tensor
    if op.type == "Gemm":
        factors = {name: abs(float(op.attribute(name))) for name in ("alpha", "beta")}
        found = compute(replace(op, attributes={**op.attributes, **factors}), *arguments)
    elif op.type == "Sub":
        found = compute(replace(op, type="Add"), *arguments)
    else:
        found = kernel(*arguments)
    return found

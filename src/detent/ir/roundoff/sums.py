"""Sums of products: linear in each input.

ONNX prescribes no order for float32 sums. In any order, with or without fused multiply-add, a sum of n products is off
by at most `gamma(n) * sum |a * b|` (Higham, Accuracy and Stability of Numerical Algorithms, section 3.1): the operation
itself on absolute values gives the second factor. Two computations are apart by twice that. An operation that reads
numbers that are uncertain themselves passes their uncertainty on.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import prod

import torch
import torch.nn.functional as F
from torch import Tensor

from detent.ir.network import Op
from detent.ir.reference import REFERENCE, KernelCall
from detent.ir.roundoff.error_bound import UNIT, ErrorBound, Errors, FloatKernel, Inputs, Rule, is_certain, of_finite

__all__ = ["SUMS", "interpolated"]

_Terms = Callable[[Op, Inputs, Tensor], int]
"""How many roundings a number goes through at most."""

_TERMS: Mapping[str, _Terms] = {
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
    "Sub": lambda _op, _inputs, _value: 2,
    "Sum": lambda _op, inputs, _value: len(inputs),
}


def _shape(each: ErrorBound | None) -> torch.Size:
    assert each is not None
    return each.value.shape


def _sum(op: Op, kernel: FloatKernel, inputs: Inputs, values: tuple[Tensor, ...]) -> Errors:
    (value, *_), certain = values, is_certain(inputs)
    # A small difference of two sums is wanted where inputs are uncertain.
    sizes = [None if each is None else _size(each.value, double=not certain) for each in inputs]
    return [of_finite(_error(op, kernel, inputs, sizes, _TERMS[op.type](op, inputs, value)), value)]


def interpolated(op: Op, kernel: FloatKernel, inputs: Inputs, values: tuple[Tensor, ...]) -> Errors:
    """A Resize that mixes pixels; None where some of their shares are negative."""
    if op.attribute("mode") == "cubic":
        return None
    value, shape = values[0], _shape(inputs[0])
    sizes = [None if each is None else _size(each.value, double=not is_certain(inputs)) for each in inputs]
    assert sizes[0] is not None
    sizes[0] = _of_neighbors(sizes[0])
    # Eight corners, each with a share as uncertain as a coordinate, which counts pixels.
    return [of_finite(_error(op, kernel, inputs, sizes, 8 + 2 * max(*shape, *value.shape)), value)]


def _size(value: Tensor, *, double: bool) -> Tensor:
    if not value.is_floating_point():
        return value
    return value.double().abs() if double else value.abs()


def _of_neighbors(size: Tensor) -> Tensor:
    """Where a pixel's share is 1, that of the next one is a rounding away from 0."""
    pool = {3: F.max_pool1d, 4: F.max_pool2d, 5: F.max_pool3d}.get(size.ndim)
    return size.amax() + torch.zeros_like(size) if pool is None else pool(size, 3, 1, 1)


def _error(op: Op, kernel: FloatKernel, inputs: Inputs, sizes: Sequence[Tensor | None], terms: int) -> Tensor:
    """On absolute values the operation gives what its roundings are relative to, and on absolute values with errors
    what these may add to it."""
    size = _absolute(op, kernel, sizes)
    error = 2 * (terms * UNIT / (1 - terms * UNIT)) * size
    if is_certain(inputs):
        return error
    wider = [
        own if each is None or own is None or each.error is None else own + each.error
        for own, each in zip(sizes, inputs, strict=True)
    ]
    return error + (_absolute(op, kernel, wider) - size)


def _absolute(op: Op, kernel: FloatKernel, arguments: Sequence[Tensor | None]) -> Tensor:
    if op.type == "Gemm":
        factors = {name: abs(float(op.attribute(name))) for name in ("alpha", "beta")}
        found = REFERENCE["Gemm"](KernelCall("Gemm", arguments, {**op.attributes, **factors}))
    elif op.type == "Sub":
        found = REFERENCE["Add"](KernelCall("Add", arguments, {}))
    else:
        found = kernel(*arguments)
    assert isinstance(found, Tensor)
    return found


SUMS: Mapping[str, Rule] = dict.fromkeys(_TERMS, _sum)

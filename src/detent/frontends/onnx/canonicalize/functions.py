"""Recognizes activation functions that exporters decompose for opsets without the operator.

    x -> Div(sqrt 2) -> Erf -> Add(1) -> Mul(x) -> Mul(0.5)        is        Gelu

There are as many spellings as exporters (factors before or behind, a product or a quotient, powers or products), so
what is looked for is no order of operations. A group of them qualifies if it is made of arithmetic with single numbers,
if it reads one tensor, and if nobody else reads what is inside it. Then it is a function of one number, and it is the
function that it equals at some thousand points, from very small to very large ones, to the precision of float32.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from detent.ir import Op, Operand, Trait, ops_with
from detent.ir.reference import REFERENCE, KernelCall

__all__ = ["Function", "Steps", "function_of", "own_swish"]

_MOST = 12
"""Operations in a group; GELU with powers written as products has 10."""

_LAST = ("Mul", "Div", "Where", "Max")
_CURVED = ("Erf", "Tanh", "Clip", "HardSigmoid", "Relu", "Softplus", "Where", "Max")

_COMPUTED = ops_with(Trait.ARITHMETIC) | {*_CURVED, "Greater", "Pow"}

_POINTS = torch.from_numpy(
    np.concatenate([np.linspace(-12.0, 12.0, 2401), *(sign * np.geomspace(1e-6, 1e4, 200) for sign in (-1.0, 1.0))])
)


@dataclass(frozen=True)
class Function:
    """`ops` in their order are the ONNX operator `type` with `attributes`, of `x`. Numbers in it have up to `axes`
    dimensions."""

    type: str
    attributes: Mapping[str, Any]
    x: Operand
    ops: tuple[Op, ...]
    axes: int


@dataclass(frozen=True)
class Steps:
    """What is known of a network.

    - `producer`: the operation that gives an operand; None where it is on a grid.
    - `readers`: of those who read a tensor, the first output of each; "" for an output of the network and for a grid.
    - `number`: a constant of one element.
    """

    producer: Callable[[Operand], Op | None]
    readers: Callable[[str], Sequence[str]]
    number: Callable[[Operand], npt.NDArray[Any] | None]


def function_of(op: Op, steps: Steps) -> Function | None:
    """The function that ends with `op`, if it is one of those that ONNX has an operator for."""
    if op.type not in _LAST:
        return None
    cone = _cone(op, steps)
    if not any(member.type in _CURVED for member in cone):
        return None
    for x, group in _groups(op, cone, steps):
        given = _evaluated(x, group, steps)
        name = None if given is None else _name(given)
        if name is not None:
            numbers = (steps.number(read) for member in group for read in member.reads if read != x)
            axes = max((held.ndim for held in numbers if held is not None), default=0)
            return Function(*name, x, tuple(group), axes)
    return None


def own_swish(op: Op, steps: Steps) -> Function | None:
    """A swish as Detent writes one, with the sigmoid named after the product: it was one operation in the model. Those
    of other files stay two, as engines have integer kernels for both."""
    gate = steps.producer(op.reads[1]) if op.type == "Mul" else None
    if gate is None or gate.type != "Sigmoid" or gate.outputs[0] != f"{op.outputs[0]}.sigmoid":
        return None
    alone = gate.reads[0] == op.reads[0] and len(steps.readers(gate.outputs[0])) == 1
    return Function("Swish", {}, op.reads[0], (gate, op), 0) if alone else None


def _cone(last: Op, steps: Steps) -> list[Op]:
    """The operations that only `last` depends on, including itself."""
    cone = [last]
    inside = {last.outputs[0]}
    for op in cone:
        for read in op.reads:
            made = steps.producer(read)
            if made is None or read.tensor in inside or made.type not in _COMPUTED or len(made.outputs) != 1:
                continue
            # The readers of its output stand before it in the walk, as soon as all of them were met.
            if inside.issuperset(steps.readers(read.tensor)) and len(cone) < _MOST:
                cone.append(made)
                inside.add(read.tensor)
    return cone


def _groups(last: Op, cone: Sequence[Op], steps: Steps) -> Iterator[tuple[Operand, list[Op]]]:
    """Each operand that `last` is a function of alone, with the operations between; those with few of them first."""
    producers = {Operand(member.outputs[0]): member for member in cone}
    operands = dict.fromkeys(read for member in cone for read in member.reads if steps.number(read) is None)
    found = []
    for x in operands:
        group, open_ends = [last], False
        for member in group:
            for read in member.reads:
                if read == x or steps.number(read) is not None:
                    continue
                made = producers.get(read)
                open_ends = open_ends or made is None
                if made is not None and not any(made is other for other in group):
                    group.append(made)
        if not open_ends:
            found.append((x, group))
    yield from sorted(found, key=lambda pair: len(pair[1]))


def _evaluated(x: Operand, group: list[Op], steps: Steps) -> Tensor | None:
    """The output of the group at the points; it is put in the order that it can be computed in."""
    values: dict[Operand, Tensor] = {x: _POINTS}
    waiting, ordered = list(group), []
    while waiting:
        for op in waiting:
            held = [None if read is None else values.get(read, _real(steps.number(read))) for read in op.inputs]
            if all(value is not None for read, value in zip(op.inputs, held, strict=True) if read is not None):
                break
        else:
            return None
        try:
            result = REFERENCE[op.type](KernelCall(op.type, held, op.attributes))
        except (RuntimeError, ValueError):  # no function of one number, such as a Clip with bounds that are computed
            return None
        assert isinstance(result, Tensor)
        values[Operand(op.outputs[0])] = result
        waiting.remove(op)
        ordered.append(op)
    group[:] = ordered
    return values[Operand(ordered[-1].outputs[0])]


def _real(number: npt.NDArray[Any] | None) -> Tensor | None:
    """A number in double precision; a condition as it is."""
    if number is None:
        return None
    held = torch.from_numpy(np.array(number)).reshape(-1)
    return held if held.dtype == torch.bool else held.double()


def _name(given: Tensor) -> tuple[str, dict[str, Any]] | None:
    if given.shape != _POINTS.shape or not given.is_floating_point() or not given.isfinite().all():
        return None
    slope = float(given[0] / _POINTS[0])
    leaky = [("LeakyRelu", {"alpha": slope})] if 0 < slope < 1 else []
    for op, attributes in (*_FUNCTIONS, *leaky):
        expected = REFERENCE[op](KernelCall(op, [_POINTS], attributes))
        assert isinstance(expected, Tensor)
        if torch.allclose(given, expected, rtol=1e-6, atol=1e-7):
            return op, attributes
    return None


_FUNCTIONS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("Gelu", {}),
    ("Gelu", {"approximate": "tanh"}),
    ("Softplus", {}),
    ("Mish", {}),
    ("HardSwish", {}),
    ("HardSigmoid", {"alpha": 1 / 6, "beta": 0.5}),
)

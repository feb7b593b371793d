"""Activation functions that a file has in single steps, as exporters write them for opsets without the operator.

    x -> Div(sqrt 2) -> Erf -> Add(1) -> Mul(x) -> Mul(0.5)        is        Gelu

There are as many spellings as exporters (factors before or behind, a product or a quotient, powers or products), so
what is looked for is no order of nodes. A group of nodes qualifies if it is made of arithmetic with single numbers, if
it reads one tensor, and if nobody else reads what is inside it. Then it is a function of one number, and it is the
function that it equals at some thousand points, from very small to very large ones, to the precision of float32.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from onnx import NodeProto, helper
from torch import Tensor

from detent.ir.reference import REFERENCE, Call

__all__ = ["Function", "Steps", "function_of", "own_swish"]

_MOST = 12
"""Nodes in a group; GELU with powers written as products has 10."""

_LAST = ("Mul", "Div", "Where", "Max")
_CURVED = ("Erf", "Tanh", "Clip", "HardSigmoid", "Relu", "Softplus", "Where", "Max")

_COMPUTED = frozenset(
    (
        "Add", "Clip", "Div", "Erf", "Greater", "HardSigmoid", "Max", "Mul", "Pow", "Relu", "Softplus", "Sub", "Tanh",
        "Where",
    )
)  # fmt: skip

_POINTS = torch.from_numpy(
    np.concatenate([np.linspace(-12.0, 12.0, 2401), *(sign * np.geomspace(1e-6, 1e4, 200) for sign in (-1.0, 1.0))])
)


@dataclass(frozen=True)
class Function:
    """`nodes` in their order are the ONNX operator `op` with `attributes`, of the tensor `x`. Numbers in it have up to
    `axes` dimensions."""

    op: str
    attributes: Mapping[str, Any]
    x: str
    nodes: tuple[NodeProto, ...]
    axes: int


@dataclass(frozen=True)
class Steps:
    """What is known of a graph: who makes a tensor, who reads it (outputs of the graph count), what a constant is."""

    maker: Callable[[str], NodeProto | None]
    readers: Callable[[str], Sequence[NodeProto]]
    constant: Callable[[str], npt.NDArray[Any] | None]

    def number(self, name: str) -> npt.NDArray[Any] | None:
        held = self.constant(name)
        return held if held is not None and held.size == 1 else None


def function_of(node: NodeProto, steps: Steps) -> Function | None:
    """The function that ends with `node`, if it is one of those that ONNX has an operator for."""
    if node.op_type not in _LAST:
        return None
    cone = _cone(node, steps)
    if not any(member.op_type in _CURVED for member in cone):
        return None
    for x, group in _groups(node, cone, steps):
        given = _evaluated(x, group, steps)
        name = None if given is None else _name(given)
        if name is not None:
            numbers = (steps.number(name) for member in group for name in member.input if name and name != x)
            axes = max((held.ndim for held in numbers if held is not None), default=0)
            return Function(*name, x, tuple(group), axes)
    return None


def own_swish(node: NodeProto, steps: Steps) -> Function | None:
    """A swish as Detent writes one, with the sigmoid named after the product: it was one operation in the model. Those
    of other files stay two, as engines have integer kernels for both."""
    gate = steps.maker(node.input[1]) if node.op_type == "Mul" else None
    if gate is None or gate.op_type != "Sigmoid" or gate.output[0] != f"{node.output[0]}.sigmoid":
        return None
    alone = gate.input[0] == node.input[0] and len(steps.readers(gate.output[0])) == 1
    return Function("Swish", {}, node.input[0], (gate, node), 0) if alone else None


def _cone(last: NodeProto, steps: Steps) -> list[NodeProto]:
    """The nodes that only `last` needs, itself first."""
    cone = [last]
    inside = {id(last)}
    for node in cone:
        for name in node.input:
            made = steps.maker(name) if name else None
            if made is None or id(made) in inside or made.op_type not in _COMPUTED or len(made.output) != 1:
                continue
            # The readers of what it gives stand before it in the walk, as soon as all of them were met.
            if all(id(reader) in inside for reader in steps.readers(name)) and len(cone) < _MOST:
                cone.append(made)
                inside.add(id(made))
    return cone


def _groups(last: NodeProto, cone: Sequence[NodeProto], steps: Steps) -> Iterator[tuple[str, list[NodeProto]]]:
    """Each tensor that `last` is a function of alone, with the nodes between; those with few nodes first."""
    makers = {member.output[0]: member for member in cone}
    tensors = dict.fromkeys(name for member in cone for name in member.input if name and steps.number(name) is None)
    found = []
    for x in tensors:
        group, open_ends = [last], False
        for member in group:
            for name in member.input:
                if not name or name == x or steps.number(name) is not None:
                    continue
                made = makers.get(name)
                open_ends = open_ends or made is None
                if made is not None and not any(made is other for other in group):
                    group.append(made)
        if not open_ends:
            found.append((x, group))
    yield from sorted(found, key=lambda pair: len(pair[1]))


def _evaluated(x: str, group: list[NodeProto], steps: Steps) -> Tensor | None:
    """What the group gives at the points; it is put in the order that it can be computed in."""
    values: dict[str, Tensor] = {x: _POINTS}
    waiting, ordered = list(group), []
    while waiting:
        for node in waiting:
            held = [values.get(name, _real(steps.number(name))) if name else None for name in node.input]
            if all(value is not None for name, value in zip(node.input, held, strict=True) if name):
                break
        else:
            return None
        attributes = {attribute.name: helper.get_attribute_value(attribute) for attribute in node.attribute}
        try:
            result = REFERENCE[node.op_type](Call(node.op_type, held, attributes))
        except (RuntimeError, ValueError):  # no function of one number, such as a Clip with bounds that are computed
            return None
        assert isinstance(result, Tensor)
        values[node.output[0]] = result
        waiting.remove(node)
        ordered.append(node)
    group[:] = ordered
    return values[ordered[-1].output[0]]


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
        expected = REFERENCE[op](Call(op, [_POINTS], attributes))
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

"""Activation functions that a file has in single steps, as exporters write them for opsets without the operator.

    x -> Div(sqrt 2) -> Erf -> Add(1) -> Mul(x) -> Mul(0.5)        is        Gelu

There are as many spellings as exporters (factors before or behind, a product or a quotient, powers or products), so
what is looked for is no order of nodes. A group of nodes qualifies if it is made of arithmetic with single numbers, if
it reads one tensor, and if nobody else reads what is inside it. Then it is a function of one number, and it is the
function that it equals at some thousand points, from very small to very large ones, to the precision of float32.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from onnx import NodeProto, helper

__all__ = ["Function", "Steps", "function_of", "own_swish"]

Floats = npt.NDArray[np.float64]

_MOST = 12
"""Nodes in a group; GELU with powers written as products has 10."""

_LAST = ("Mul", "Div", "Where", "Max")
_CURVED = ("Erf", "Tanh", "Clip", "HardSigmoid", "Relu", "Softplus", "Where", "Max")

_POINTS = np.concatenate(
    [np.linspace(-12.0, 12.0, 2401), *(sign * np.geomspace(1e-6, 1e4, 200) for sign in (-1.0, 1.0))]
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


def _evaluated(x: str, group: list[NodeProto], steps: Steps) -> Floats | None:
    """What the group gives at the points; it is put in the order that it can be computed in."""
    values: dict[str, Any] = {x: _POINTS}
    waiting, ordered = list(group), []
    with np.errstate(all="ignore"):
        while waiting:
            for node in waiting:
                held = {name: values.get(name, steps.number(name)) for name in node.input if name}
                if all(value is not None for value in held.values()):
                    break
            else:
                return None
            inputs = [np.asarray(held[name], np.float64).reshape(-1) if name else None for name in node.input]
            attributes = {attribute.name: helper.get_attribute_value(attribute) for attribute in node.attribute}
            values[node.output[0]] = _COMPUTED[node.op_type](attributes, *inputs)
            waiting.remove(node)
            ordered.append(node)
    group[:] = ordered
    given: Floats = values[ordered[-1].output[0]]
    return given


def _name(given: Floats) -> tuple[str, dict[str, Any]] | None:
    if given.shape != _POINTS.shape or not np.isfinite(given).all():
        return None
    slope = float(given[0] / _POINTS[0])
    leaky = ("LeakyRelu", {"alpha": slope}, np.where(_POINTS > 0, _POINTS, slope * _POINTS))
    for op, attributes, expected in (*_FUNCTIONS, *([leaky] if 0 < slope < 1 else [])):
        if np.allclose(given, expected, rtol=1e-6, atol=1e-7):
            return op, attributes
    return None


def _clip(attributes: Mapping[str, Any], x: Floats, least: Any = None, greatest: Any = None) -> Floats:
    low = attributes.get("min", -np.inf) if least is None else least
    high = attributes.get("max", np.inf) if greatest is None else greatest
    return np.asarray(np.minimum(np.maximum(x, low), high))


def _hard_sigmoid(attributes: Mapping[str, Any], x: Floats) -> Floats:
    return np.asarray(np.clip(attributes.get("alpha", 0.2) * x + attributes.get("beta", 0.5), 0.0, 1.0))


def _where(_: Mapping[str, Any], condition: Floats, x: Floats, y: Floats) -> Floats:
    return np.asarray(np.where(condition != 0, x, y))


_erf = np.vectorize(math.erf, otypes=[np.float64])

_COMPUTED: Mapping[str, Callable[..., Floats]] = {
    "Add": lambda _, x, y: x + y,
    "Sub": lambda _, x, y: x - y,
    "Mul": lambda _, x, y: x * y,
    "Div": lambda _, x, y: x / y,
    "Pow": lambda _, x, y: x**y,
    "Erf": lambda _, x: _erf(x),
    "Tanh": lambda _, x: np.tanh(x),
    "Softplus": lambda _, x: np.logaddexp(x, 0.0),
    "Max": lambda _, x, *others: functools.reduce(np.maximum, others, x),
    "Greater": lambda _, x, y: np.asarray(x > y, np.float64),
    "Where": _where,
    "Relu": lambda _, x: np.maximum(x, 0.0),
    "Clip": _clip,
    "HardSigmoid": _hard_sigmoid,
}


def _curves() -> tuple[tuple[str, dict[str, Any], Floats], ...]:
    x = _POINTS
    tanh = np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))
    hard = np.clip(x / 6 + 0.5, 0.0, 1.0)
    return (
        ("Gelu", {}, 0.5 * x * (1 + _erf(x / math.sqrt(2)))),
        ("Gelu", {"approximate": "tanh"}, 0.5 * x * (1 + tanh)),
        ("Softplus", {}, np.logaddexp(x, 0.0)),
        ("Mish", {}, x * np.tanh(np.logaddexp(x, 0.0))),
        ("HardSwish", {}, x * hard),
        ("HardSigmoid", {"alpha": 1 / 6, "beta": 0.5}, hard),
    )


_FUNCTIONS = _curves()

"""The third way from a module to an fx graph: it runs on two batches, and what it calls is recorded.

Code that makes plain numbers of sizes (`int(x.shape[0] / 4)`, `float(stride)`, numpy, keys of a dict) is lost for
symbols, and runs here. Numbers that differ between the two runs are those of the batch size. The other sizes are the
example's, and are checked. Code that looks at the numbers in a tensor that depends on the inputs is refused.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from typing import Any

import torch
from torch import Tensor, fx

from detent.errors import CaptureError
from detent.graph.capture.running import flat
from detent.graph.capture.shape_guards import as_traced
from detent.traversal import reachable

__all__ = ["NumericSizes", "ReadsNumbersError", "join_runs", "refuse_other_inputs", "refuse_reading"]

Inputs = Mapping[fx.Node, Sequence[int]]
"""Nodes that give tensors that go in, and the shapes of these."""

_CONVERTING = ("item", "tolist", "numpy", "__array__", "__bool__", "__int__", "__float__", "__index__", "__complex__")
_COMPARING = ("__contains__", "equal", "allclose", "is_nonzero")
_PICKING = ("nonzero", "argwhere", "masked_select", "unique", "unique_consecutive", "_pack_padded_sequence")
_READING = frozenset((*_CONVERTING, *_COMPARING, *_PICKING))
"""Functions and methods whose result, or its size, shows the numbers in a tensor."""


class ReadsNumbersError(CaptureError):
    """Python code that depends on the numbers in a tensor: no way of capturing takes it."""


class NumericSizes:
    """Sizes that are numbers: the counterpart of `SymbolicSizes`."""

    def add_input(self, node: fx.Node, value: Tensor, shapes: Sequence[Sequence[int]]) -> None:
        pass

    def examples(self, shape: Sequence[Any]) -> list[tuple[int, ...]]:
        return [tuple(shape)]

    def node(self, size: Any) -> Any:
        return size


def refuse_reading(func: Callable[..., Any], args: Sequence[Any], nodes: Sequence[fx.Node]) -> None:
    """Refuse a call that shows numbers, or by its size how many there are, of what `nodes` give, if these depend on the
    inputs."""
    name = getattr(func, "__name__", "")
    picks = name == "__getitem__" and any(_is_mask(part) for part in flat(args[1:]))
    finds = name == "where" and len(args) == 1
    if not (name in _READING or picks or finds):
        return
    if any(node.op == "placeholder" for node in reachable(nodes, lambda node: node.all_input_nodes)):
        raise ReadsNumbersError("capture", "its Python code depends on the numbers in a tensor, not on sizes alone", "")


def _is_mask(value: Any) -> bool:
    return isinstance(value, Tensor) and value.dtype == torch.bool


def join_runs(graph: fx.Graph, other: fx.Graph, inputs: Inputs, other_inputs: Inputs) -> None:
    """Put the size of the batch into `graph`, wherever `other`, of a run on another batch, has another number."""
    place = _free_size(inputs, other_inputs)
    nodes, others = list(graph.nodes), list(other.nodes)
    if len(nodes) != len(others):
        raise CaptureError("capture", "its code makes other calls for another batch", "")
    sizes = None if place is None else _SizesOfBatch(graph, *place, _first_behind(graph, inputs))
    for node, twin in zip(nodes, others, strict=True):
        if (node.op, node.target, node.name) != (twin.op, twin.target, twin.name):
            raise CaptureError("capture", "its code makes other calls for another batch", "")
        node.args = _joined(node.args, twin.args, sizes)
        node.kwargs = _joined(node.kwargs, twin.kwargs, sizes)


def refuse_other_inputs(graph: fx.Graph, inputs: Inputs, other_inputs: Inputs | None) -> None:
    """Nodes that check sizes that are the same in both runs; all sizes, if there was only one."""
    others = inputs.values() if other_inputs is None else other_inputs.values()
    with graph.inserting_before(_first_behind(graph, inputs)):
        for (node, shape), other in zip(inputs.items(), others, strict=True):
            for axis, size in enumerate(shape):
                if size == other[axis]:
                    asked = graph.call_method("size", (node, axis))
                    graph.call_function(as_traced, (graph.call_function(operator.eq, (asked, size)), True))


def _free_size(inputs: Inputs, others: Inputs) -> tuple[fx.Node, int, int, int] | None:
    """The first size that differs: the node, the axis and the two numbers."""
    for (node, shape), other in zip(inputs.items(), others.values(), strict=True):
        for axis, pair in enumerate(zip(shape, other, strict=True)):
            if pair[0] != pair[1]:
                return node, axis, *pair
    return None


def _first_behind(graph: fx.Graph, inputs: Inputs) -> fx.Node:
    last: fx.Node = [node for node in graph.nodes if node.op == "placeholder" or node in inputs][-1]
    return last.next


class _SizesOfBatch:
    """Nodes that compute numbers from the size of an axis, each made once."""

    def __init__(self, graph: fx.Graph, node: fx.Node, axis: int, first: int, second: int, behind: fx.Node):
        self._graph, self._behind = graph, behind
        self._first, self._second = first, second
        self._made: dict[tuple[Fraction, Fraction], fx.Node] = {}
        self._input, self._axis = node, axis

    def node(self, first: int, second: int) -> fx.Node:
        """A node that computes `first` for the one batch and `second` for the other, linear in the batch size."""
        slope = Fraction(second - first, self._second - self._first)
        line = slope, first - slope * self._first
        if line not in self._made:
            with self._graph.inserting_before(self._behind):
                self._made[line] = self._computed(*line)
        return self._made[line]

    def _computed(self, slope: Fraction, offset: Fraction) -> fx.Node:
        call = self._graph.call_function
        size = self._graph.call_method("size", (self._input, self._axis))
        numerator, shift = slope.numerator, offset * slope.denominator
        if shift.denominator != 1:
            raise CaptureError("capture", "a number is computed of the batch size in a way that is not known", "")
        made = call(operator.mul, (size, numerator)) if numerator != 1 else size
        made = call(operator.add, (made, int(shift))) if shift else made
        result: fx.Node = call(operator.floordiv, (made, slope.denominator)) if slope.denominator != 1 else made
        return result


def _joined(first: Any, second: Any, sizes: _SizesOfBatch | None) -> Any:
    if isinstance(first, fx.Node) and isinstance(second, fx.Node) and first.name == second.name:
        return first
    if type(first) is type(second) is int and first != second and sizes is not None:
        return sizes.node(first, second)
    if isinstance(first, slice) and isinstance(second, slice):
        ends = [(getattr(first, end), getattr(second, end)) for end in ("start", "stop", "step")]
        return slice(*(_joined(*pair, sizes) for pair in ends))
    if isinstance(first, (list, tuple)) and isinstance(second, (list, tuple)) and len(first) == len(second):
        parts = (_joined(*pair, sizes) for pair in zip(first, second, strict=True))
        return list(parts) if isinstance(first, list) else tuple(parts)
    if isinstance(first, Mapping) and isinstance(second, Mapping) and first.keys() == second.keys():
        return {key: _joined(value, second[key], sizes) for key, value in first.items()}
    if isinstance(first, fx.Node) or isinstance(second, fx.Node) or first != second:
        raise CaptureError("capture", "its code computes with other numbers for another batch", "")
    return first

"""Sizes that torch.export keeps symbolic, as nodes: `x.size(1)` and arithmetic on it.

torch.export says a size as an expression of sympy over the sizes of the inputs, whatever Python code computed it.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from typing import Any

import torch
from torch import Tensor, fx

from detent.errors import CaptureError

__all__ = ["SymbolicSizes"]

_FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    "Add": operator.add,
    "Mul": operator.mul,
    "Pow": operator.pow,
    "FloorDiv": operator.floordiv,
    "CleanDiv": operator.floordiv,
    "Mod": operator.mod,
    "PythonMod": operator.mod,
    "IntTrueDiv": operator.truediv,
    "FloatTrueDiv": operator.truediv,
    "ToFloat": float,
    "TruncToInt": int,
    "TruncToFloat": math.trunc,
    "FloorToInt": math.floor,
    "CeilToInt": math.ceil,
    "RoundToInt": round,
    "IntPow": operator.pow,
    "FloatPow": operator.pow,
    "Max": torch.sym_max,
    "Min": torch.sym_min,
    "OpaqueUnaryFn_sqrt": math.sqrt,
    "OpaqueUnaryFn_log2": math.log2,
    "OpaqueUnaryFn_log": math.log,
}
"""By the names of the classes of sympy's and torch's expressions."""


class SymbolicSizes:
    """The nodes of a graph that compute sizes; each is made once, where it is first needed."""

    def __init__(self, graph: fx.Graph):
        self._graph = graph
        self._nodes: dict[Any, fx.Node] = {}
        self._places: dict[Any, tuple[fx.Node, int]] = {}
        self._examples: tuple[dict[Any, int], ...] = ({}, {})

    def add_input(self, node: fx.Node, value: Tensor, shapes: Sequence[Sequence[int]]) -> None:
        """Every size of an input that is a symbol can be asked of it from here on. `shapes` are examples of it."""
        sizes: Sequence[Any] = value.shape
        for axis, size in enumerate(sizes):
            if isinstance(size, torch.SymInt) and size.node.expr.is_Symbol:
                self._places.setdefault(size.node.expr, (node, axis))
                for numbers, shape in zip(self._examples, shapes, strict=True):
                    numbers.setdefault(size.node.expr, shape[axis])

    def examples(self, shape: Sequence[Any]) -> list[tuple[int, ...]]:
        """A shape in numbers, for each of the examples."""
        return [
            tuple(int(size.node.expr.subs(numbers)) if isinstance(size, torch.SymInt) else size for size in shape)
            for numbers in self._examples
        ]

    def node(self, size: torch.SymInt | torch.SymFloat) -> Any:
        """A number, or the node that computes it."""
        return self._value(size.node.expr)

    def _value(self, expression: Any) -> Any:
        if expression.is_Integer:
            return int(expression)
        if expression.is_Float or expression.is_Rational:
            return float(expression)
        if expression not in self._nodes:
            self._nodes[expression] = self._made(expression)
        return self._nodes[expression]

    def _made(self, expression: Any) -> fx.Node:
        if expression.is_Symbol:
            if expression not in self._places:
                raise CaptureError("capture", "a size depends on the numbers in a tensor", "")
            node, axis = self._places[expression]
            return self._graph.call_method("size", (node, axis))
        parts = [self._value(part) for part in expression.args]
        name = type(expression).__name__
        if name not in _FUNCTIONS:
            raise CaptureError("capture", f"a size is computed by {name}", "")
        function = _FUNCTIONS[name]
        if len(parts) < 3:
            return self._graph.call_function(function, tuple(parts))
        made: fx.Node = reduce(lambda left, right: self._graph.call_function(function, (left, right)), parts)
        return made

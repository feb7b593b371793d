"""Runs graphs; an error in an operation gives its name, its type and its inputs."""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import TracebackType
from typing import Any

from torch import Tensor, fx, nn
from torch.nn.utils.parametrize import type_before_parametrizations

from detent.errors import RunError
from detent.graph.torch_ops import called_module

__all__ = ["TORCH_ERRORS", "GraphInterpreter", "Runner", "described", "explain_error", "run_error"]

TORCH_ERRORS = (IndexError, NotImplementedError, RuntimeError, TypeError, ValueError)
"""What torch raises for values that do not fit. Classes made from these (out of memory, a user's own) are not meant."""


class Runner(fx.GraphModule):
    """A graph module whose errors name the operation."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        try:
            return super().__call__(*args, **kwargs)
        except TORCH_ERRORS as error:
            place = _place_in(self, error.__traceback__) if type(error) in TORCH_ERRORS else None
            node = None if place is None else _node_at(self, place.tb_lineno)
            if place is None or node is None:
                raise
            raise run_error(error, node, dict(self.named_modules()), place.tb_frame.f_locals) from error


class GraphInterpreter(fx.Interpreter):
    """Runs a graph node by node; its errors name the operation."""

    def run_node(self, n: fx.Node) -> Any:
        try:
            return super().run_node(n)
        except TORCH_ERRORS as error:
            if type(error) not in TORCH_ERRORS:
                raise
            values = {node.name: value for node, value in self.env.items()}
            raise run_error(error, n, dict(self.module.named_modules()), values) from error


def run_error(error: Exception, node: fx.Node, modules: Mapping[str, nn.Module], values: Mapping[str, Any]) -> RunError:
    """The error for `node`, with those of `values` (by the names of nodes) that are its inputs."""
    module = called_module(node, modules)
    read = [(operand, values[operand.name]) for operand in node.all_input_nodes if operand.name in values]
    operands = [
        (f"the input {place.target!r}, " if place.op == "placeholder" else "") + described(value)
        for place, value in read
    ]
    found, to_do = explain_error(error, module, next((value for _, value in read), None))
    return RunError(f"run {_named(node, module)} on {', '.join(operands) or 'nothing'}", found, to_do)


def explain_error(error: Exception, module: nn.Module | None, value: Any) -> tuple[str, str]:
    """What was found and what to do if `module` (if it is one) could not process `value`."""
    if isinstance(module, nn.Embedding) and isinstance(error, IndexError) and isinstance(value, Tensor):
        rows = f"0 to {module.num_embeddings - 1}"
        return f"ids from {int(value.min())} to {int(value.max())}; its rows are {rows}", f"give ids from {rows}"
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0] if lines else ''}", "give inputs that fit it, or correct the model"


def described(value: Any) -> str:
    """A tensor's type and shape.

    >>> import torch
    >>> described(torch.zeros(2, 3))
    'float32 (2, 3)'
    """
    return (
        f"{str(value.dtype).removeprefix('torch.')} {tuple(value.shape)}" if isinstance(value, Tensor) else repr(value)
    )


def _place_in(runner: fx.GraphModule, trace: TracebackType | None) -> TracebackType | None:
    """Where the error passed through the code that torch.fx wrote for the graph."""
    code = type(runner).forward.__code__
    while trace is not None and trace.tb_frame.f_code is not code:
        trace = trace.tb_next
    return trace


def _node_at(runner: fx.GraphModule, line: int) -> fx.Node | None:
    """The node of a line of that code, which begins with the name of what it computes."""
    name = re.match(r"\s*(\w+)", runner.code.splitlines()[line - 1])
    return next((node for node in runner.graph.nodes if name and node.name == name[1]), None)


def _named(node: fx.Node, module: nn.Module | None) -> str:
    names, types = node.meta.get("names"), node.meta.get("types")
    if names and types:  # of the file that it was imported from
        return f"{names[0]!r} ({', '.join(types)})"
    if module is not None:
        return f"{str(node.target)!r} ({type_before_parametrizations(module).__name__})"
    return f"{node.name!r} ({getattr(node.target, '__name__', node.target)})"

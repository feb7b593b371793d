"""Binds the arguments of a call to the placeholders of a graph."""

from __future__ import annotations

import inspect
from typing import Any

from torch import Tensor, fx

__all__ = ["Values", "bound_inputs"]

Values = dict[fx.Node, Any]


def bound_inputs(runner: fx.GraphModule, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Values:
    """The value of each placeholder in one call. Tensors are copied, because the graph may modify its inputs."""
    bound = inspect.signature(runner.forward).bind(*args, **kwargs)
    bound.apply_defaults()
    return {
        node: _copied(bound.arguments[str(node.target).lstrip("*")])
        for node in runner.graph.nodes
        if node.op == "placeholder"
    }


def _copied(value: Any) -> Any:
    return value.detach().clone() if isinstance(value, Tensor) else value

"""Inputs and outputs of models: tensors nested in dicts, lists, tuples and dataclasses."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

from torch import Tensor, fx

__all__ = ["bound", "tensors_in"]


def tensors_in(value: Any) -> Iterator[Tensor]:
    """The tensors of a value, in the order in which they are inputs or outputs of the deployed network."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, Mapping):
        for part in value.values():
            yield from tensors_in(part)
    elif isinstance(value, (list, tuple)):
        for part in value:
            yield from tensors_in(part)
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        for one in dataclasses.fields(value):
            yield from tensors_in(getattr(value, one.name))


def bound(graph: fx.Graph, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[Any, ...]:
    """Arguments in the order of a graph's placeholders, with the defaults of those that are not given."""
    values: list[Any] = []
    waiting = list(args)
    for node in graph.nodes:
        if node.op != "placeholder":
            continue
        name = str(node.target)
        if name.startswith("**"):
            values.append(dict(kwargs))
        elif name.startswith("*"):
            values.extend(waiting)
            waiting = []
        elif name in kwargs:
            values.append(kwargs[name])
        elif waiting:
            values.append(waiting.pop(0))
        else:
            values.append(node.args[0] if node.args else None)
    return tuple(values)

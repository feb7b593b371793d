"""Reads and edits ONNX protobuf messages."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from onnx import FunctionProto, GraphProto, ModelProto, TensorProto

__all__ = ["all_tensors", "constant_tensors", "without_initializers"]


def all_tensors(model: ModelProto) -> Iterator[TensorProto]:
    """The tensors of the graph, its functions and their subgraphs."""
    waiting: list[GraphProto | FunctionProto] = [model.graph, *model.functions]
    while waiting:
        held = waiting.pop()
        sparse: list[Any] = []
        if isinstance(held, GraphProto):
            yield from held.initializer
            sparse += held.sparse_initializer
        for attribute in (attribute for node in held.node for attribute in node.attribute):
            yield from (*([attribute.t] if attribute.HasField("t") else []), *attribute.tensors)
            sparse += [attribute.sparse_tensor] if attribute.HasField("sparse_tensor") else []
            sparse += attribute.sparse_tensors
            waiting += [attribute.g] if attribute.HasField("g") else []
            waiting += attribute.graphs
        for one in sparse:
            yield from (one.values, one.indices)


def constant_tensors(graph: GraphProto) -> dict[str, TensorProto]:
    """The initializers, and what Constant nodes hold as tensors, by name."""
    found = {tensor.name: tensor for tensor in graph.initializer}
    for node in graph.node:
        if node.op_type == "Constant":
            found.update((node.output[0], held.t) for held in node.attribute if held.name == "value")
    return found


def without_initializers(model: ModelProto) -> ModelProto:
    """A copy of all else; not a copy with them taken out, because protobuf frees those with the whole message only."""
    kept = ModelProto()
    for field, value in model.ListFields():
        if field.name != "graph":
            _set(kept, field.name, value)
    for field, value in model.graph.ListFields():
        if field.name != "initializer":
            _set(kept.graph, field.name, value)
    return kept


def _set(message: Any, field: str, value: Any) -> None:
    if isinstance(value, (int, str, bytes)):
        setattr(message, field, value)
    else:
        message.MergeFrom(type(message)(**{field: value}))

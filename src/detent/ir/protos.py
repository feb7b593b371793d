"""Edits ONNX protobuf messages."""

from __future__ import annotations

from typing import Any

from onnx import ModelProto

__all__ = ["without_initializers"]


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

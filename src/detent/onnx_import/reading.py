"""From a path to a ModelProto, trusting nothing: no file outside the model's folder is opened, ever."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from onnx import AttributeProto, GraphProto, ModelProto, TensorProto

from detent.errors import OnnxError

__all__ = ["all_graphs", "check_text", "read_model"]

_DEPTH = 16  # subgraphs in subgraphs
_MOST = 2**31 - 1  # bytes protobuf can parse


def read_model(path: str | os.PathLike[str]) -> ModelProto:
    """The model of a file with its external data read in."""
    file = Path(path)
    asked = f"load {str(file)!r}"
    if not file.is_file():
        raise OnnxError(asked, "there is no such file", "give the path of an .onnx file")
    if file.stat().st_size > _MOST:
        raise OnnxError(asked, "the file is larger than 2 GB", "save the weights as external data")
    model = ModelProto()
    try:
        model.ParseFromString(file.read_bytes())
    except Exception as error:  # protobuf's own, and what it lets through
        raise OnnxError(
            asked, f"it is no ONNX file, or a damaged one ({error})", "get it, or export it, again"
        ) from None
    for tensor in _tensors(model):
        if tensor.data_location == TensorProto.EXTERNAL:
            _read_external(tensor, file.resolve().parent, asked)
    return model


def all_graphs(graph: GraphProto, depth: int = 0) -> Iterator[GraphProto]:
    """A graph and those inside its nodes."""
    if depth > _DEPTH:
        raise OnnxError(f"graph {graph.name!r}", f"subgraphs nested deeper than {_DEPTH}", "simplify the model")
    yield graph
    for node in graph.node:
        for attribute in node.attribute:
            for inner in (*([attribute.g] if attribute.HasField("g") else []), *attribute.graphs):
                yield from all_graphs(inner, depth + 1)


def check_text(model: ModelProto) -> None:
    """Names are text: protobuf hands out bytes that are not UTF-8 as they are."""
    texts: list[Any] = [entry.domain for entry in model.opset_import]
    for graph in all_graphs(model.graph):
        texts += [graph.name, *(part.name for part in (*graph.initializer, *graph.input, *graph.output))]
        for node in graph.node:
            texts += [node.name, node.op_type, node.domain, *node.input, *node.output]
            texts += [attribute.name for attribute in node.attribute]
    broken = next((text for text in texts if not isinstance(text, str)), None)
    if broken is not None:
        raise OnnxError(
            "load an ONNX model", f"the name {broken[:40]!r} is no text", "the file is damaged: get it again"
        )


def _tensors(model: ModelProto) -> Iterator[TensorProto]:
    for graph in all_graphs(model.graph):
        yield from graph.initializer
        for sparse in graph.sparse_initializer:
            yield from (sparse.values, sparse.indices)
        for node in graph.node:
            yield from _attribute_tensors(node.attribute)
    for function in model.functions:
        for node in function.node:
            yield from _attribute_tensors(node.attribute)


def _attribute_tensors(attributes: Any) -> Iterator[TensorProto]:
    attribute: AttributeProto
    for attribute in attributes:
        if attribute.HasField("t"):
            yield attribute.t
        yield from attribute.tensors


def _read_external(tensor: TensorProto, folder: Path, asked: str) -> None:
    entries = {entry.key: entry.value for entry in tensor.external_data}
    location = entries.get("location", "")
    file = _inside(folder, location, f"{asked}: the data of {tensor.name!r}")
    try:
        offset, length = int(entries.get("offset", 0)), entries.get("length")
        size = file.stat().st_size
        count = size - offset if length is None else int(length)
    except ValueError as error:
        raise _outside(asked, f"the data of {tensor.name!r} has {error}") from None
    if offset < 0 or count < 0 or offset + count > size:
        raise _outside(asked, f"{tensor.name!r} wants bytes {offset} to {offset + count} of {location!r}, of {size}")
    with file.open("rb") as stream:
        stream.seek(offset)
        tensor.raw_data = stream.read(count)
    del tensor.external_data[:]
    tensor.data_location = TensorProto.DEFAULT


def _inside(folder: Path, location: str, asked: str) -> Path:
    """The file, if it is a regular one of the folder after every symbolic link is followed."""
    parts = Path(location).parts
    if not location or "\0" in location or Path(location).is_absolute() or ".." in parts or "\\" in location:
        raise _outside(asked, f"the path {location!r}, which is not one inside the model's folder")
    try:
        file = (folder / location).resolve(strict=True)
    except (OSError, RuntimeError):
        raise _outside(asked, f"no file {location!r} in the model's folder") from None
    if not file.is_relative_to(folder) or not file.is_file():
        raise _outside(asked, f"{location!r}, which leads out of the model's folder or is no plain file")
    return file


def _outside(asked: str, found: str) -> OnnxError:
    return OnnxError(asked, found, "put the data file next to the model, as it was saved")

"""Reads a ModelProto from an untrusted file: no file outside the model's folder is ever opened."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

from onnx import GraphProto, ModelProto, TensorProto

from detent.errors import OnnxError
from detent.frontends.onnx.reading.tensors import byte_size, check_size
from detent.ir.protos import all_tensors

__all__ = ["all_graphs", "check_text", "read_model"]

_DEPTH = 16  # subgraphs in subgraphs
_MOST = 2**31 - 1  # bytes protobuf can parse
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")
_REPEATS = 8  # how often a file of external data may be read in all: tensors may share their data


def read_model(path: str | os.PathLike[str]) -> ModelProto:
    """The model of a file with its external data read in."""
    file = Path(path)
    asked = f"load {str(file)!r}"
    if not file.is_file():
        raise OnnxError(asked, "there is no such file", "give the path of an .onnx file")
    if file.stat().st_size == 0:
        raise OnnxError(asked, "the file is empty", "export or download it again")
    if file.stat().st_size > _MOST:
        raise OnnxError(asked, "the file is larger than 2 GB", "save the weights as external data")
    model = ModelProto()
    try:
        model.ParseFromString(file.read_bytes())
    except Exception as error:  # protobuf's own errors, and those it lets through
        raise OnnxError(
            asked, f"it is not an ONNX file, or it is damaged ({error})", "export or download it again"
        ) from None
    outside = _External(file.resolve().parent, asked)
    for tensor in all_tensors(model):
        if tensor.data_location == TensorProto.EXTERNAL:
            outside.read(tensor)
    return model


def all_graphs(graph: GraphProto, depth: int = 0) -> Iterator[GraphProto]:
    """A graph and all its subgraphs."""
    if depth > _DEPTH:
        raise OnnxError(f"graph {graph.name!r}", f"subgraphs nested deeper than {_DEPTH}", "simplify the model")
    yield graph
    for node in graph.node:
        for attribute in node.attribute:
            for inner in (*([attribute.g] if attribute.HasField("g") else []), *attribute.graphs):
                yield from all_graphs(inner, depth + 1)


def check_text(model: ModelProto) -> None:
    """Names are text, and none has a line break or another control character: a command that prints it would print what
    the file says. Protobuf hands out bytes that are not UTF-8 as they are."""
    texts: list[Any] = [entry.domain for entry in model.opset_import]
    for graph in all_graphs(model.graph):
        texts += [graph.name, *(part.name for part in (*graph.initializer, *graph.input, *graph.output))]
        texts += [dim.dim_param for port in (*graph.input, *graph.output) for dim in port.type.tensor_type.shape.dim]
        for node in graph.node:
            texts += [node.name, node.op_type, node.domain, *node.input, *node.output]
            texts += [attribute.name for attribute in node.attribute]
    broken = next((text for text in texts if not isinstance(text, str)), None)
    if broken is not None:
        raise OnnxError(
            "load an ONNX model", f"the name {broken[:40]!r} is not text", "the file is damaged: get it again"
        )
    hidden = next((text for text in texts if not text.isprintable() and _CONTROL.search(text)), None)
    if hidden is not None:
        found = f"the name {hidden[:40]!r} has a control character"
        raise OnnxError("load an ONNX model", found, "rename it where the file is made")


class _External:
    """Reads the data of tensors from the files of one folder, no more in all than a few times what these hold."""

    def __init__(self, folder: Path, asked: str):
        self._folder, self._asked = folder, asked
        self._sizes: dict[Path, int] = {}
        self._read = 0

    def read(self, tensor: TensorProto) -> None:
        """Puts the values of `tensor` into it."""
        entries = {entry.key: entry.value for entry in tensor.external_data}
        asked, location = f"{self._asked}: the data of {tensor.name!r}", entries.get("location", "")
        file = _inside(self._folder, location, asked)
        with _opened(file, asked) as stream:
            size = self._sizes[file] = os.fstat(stream.fileno()).st_size
            try:
                offset = int(entries.get("offset", 0))
                count = int(entries["length"]) if "length" in entries else byte_size(tensor)
            except ValueError as error:
                raise _outside(asked, f"{error}") from None
            if offset < 0 or count < 0 or offset + count > size:
                raise _outside(asked, f"bytes {offset} to {offset + count} of {location!r}, which has {size}")
            check_size(tensor, count)
            self._read += count
            if self._read > _REPEATS * sum(self._sizes.values()):
                raise _outside(asked, f"the tensors read {location!r} again and again")
            stream.seek(offset)
            tensor.raw_data = stream.read(count)
        del tensor.external_data[:]
        tensor.data_location = TensorProto.DEFAULT


def _opened(file: Path, asked: str) -> BinaryIO:
    """The file that was checked: no link that has taken its place since, and no pipe that would be waited for."""
    flags = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
    try:
        descriptor = os.open(file, flags)
    except OSError as error:
        raise _outside(asked, f"{file.name!r} cannot be read: {error.strerror}") from None
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise _outside(asked, f"{file.name!r}, which is not a plain file")
    return os.fdopen(descriptor, "rb")


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
        raise _outside(asked, f"{location!r}, which leads out of the model's folder or is not a plain file")
    return file


def _outside(asked: str, found: str) -> OnnxError:
    return OnnxError(asked, found, "put the data file next to the model, as it was saved")

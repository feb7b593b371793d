"""Replaces sequences whose elements are known at import by their tensors: Split, Slice, Concat, Identity.

Exporters write lists of tensors so (`torch.split`, `unbind`, a Python list that is filled and concatenated). A sequence
that is an input or output of the network, or goes through a loop, is none of these and is left as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from onnx import ModelProto, NodeProto, helper, numpy_helper

from detent.frontends.onnx.call import label
from detent.frontends.onnx.skeleton import reads
from detent.ir import TensorNames
from detent.ir.protos import constant_tensors, without_initializers

__all__ = ["remove_sequences"]

_SMALL = 1024  # elements; more say no position and no sizes


def remove_sequences(model: ModelProto) -> ModelProto:
    """`model` itself if it has none, or one that is more than its parts."""
    kinds = {node.op_type for node in model.graph.node if node.domain in ("", "ai.onnx")}
    if not kinds & _WRITERS.keys():
        return model
    opset = next(entry.version for entry in model.opset_import if entry.domain in ("", "ai.onnx"))
    writing = _Writing(model, int(opset))
    try:
        writing.run()
    except _UnknownError:
        return model
    made = without_initializers(model)
    del made.graph.node[:]
    made.graph.node.extend(writing.nodes)
    made.graph.initializer.extend([*model.graph.initializer, *writing.constants])
    return made


class _UnknownError(Exception):
    """The elements of a sequence are not known."""


class _Chunks:
    """A split by size into a number of parts that the file does not give: each part is a slice."""

    def __init__(self, source: str, axis: int, size: int, keep: bool):
        self.source, self.axis, self.size, self.keep = source, axis, size, keep


class _Writing:
    def __init__(self, model: ModelProto, opset: int):
        self._graph, self.opset = model.graph, opset
        self.names = TensorNames(name for node in self._graph.node for name in (*node.input, *node.output))
        self._held = constant_tensors(self._graph)
        self.lists: dict[str, list[str] | _Chunks] = {}
        self.nodes: list[NodeProto] = []
        self.constants: list[Any] = []

    def run(self) -> None:
        for node in self._graph.node:
            standard = node.domain in ("", "ai.onnx")
            if standard and node.op_type in _WRITERS:
                _WRITERS[node.op_type](self, node)
            elif standard and node.op_type == "Identity" and node.input[0] in self.lists:
                self.lists[node.output[0]] = self.lists[node.input[0]]
            elif any(name in self.lists for name in reads(node)):
                raise _UnknownError
            else:
                self.nodes.append(node)
        if any(value.name in self.lists for value in self._graph.output):
            raise _UnknownError

    # ---- known values ----

    def parts(self, name: str) -> list[str]:
        found = self.lists.get(name)
        if not isinstance(found, list):
            raise _UnknownError
        return found

    def numbers(self, node: NodeProto, index: int) -> np.ndarray[Any, Any] | None:
        """The whole numbers of an input that is constant; None if it is not there."""
        if index >= len(node.input) or not node.input[index]:
            return None
        tensor = self._held.get(node.input[index])
        if tensor is None or int(np.prod(tensor.dims)) > _SMALL:
            raise _UnknownError
        return np.asarray(numpy_helper.to_array(tensor))

    def position(self, node: NodeProto, index: int, default: int) -> int:
        found = self.numbers(node, index)
        return default if found is None else int(found.reshape(-1)[0])

    # ---- writing nodes ----

    def write(self, kind: str, inputs: Sequence[str], outputs: Sequence[str], name: str, **said: Any) -> None:
        self.nodes.append(helper.make_node(kind, list(inputs), list(outputs), name=name, **said))

    def constant(self, values: Any, like: str) -> str:
        name = self.names.unique(like)
        self.constants.append(numpy_helper.from_array(np.array(values, np.int64), name))
        return name

    def along(self, kind: str, source: str, target: str, axis: int, name: str) -> None:
        """Squeeze or Unsqueeze of one axis, which was an attribute before opset 13."""
        if self.opset < 13:
            self.write(kind, [source], [target], name, axes=[axis])
        else:
            self.write(kind, [source, self.constant([axis], f"{target}_axes")], [target], name)

    def cut(self, chunks: _Chunks, at: int, target: str, name: str) -> None:
        if at < 0:
            raise _UnknownError
        whole = target if chunks.keep else self.names.unique(f"{target}_kept")
        ends = [chunks.size * at], [chunks.size * (at + 1)], [chunks.axis]
        numbers = [self.constant(n, f"{target}_{what}") for n, what in zip(ends, ("start", "end", "axis"), strict=True)]
        self.write("Slice", [chunks.source, *numbers], [whole], name)
        if not chunks.keep:
            self.along("Squeeze", whole, target, chunks.axis, f"{name}_squeeze")


def _attribute(node: NodeProto, name: str, default: int) -> int:
    return next((int(attribute.i) for attribute in node.attribute if attribute.name == name), default)


def _empty(writing: _Writing, node: NodeProto) -> None:
    writing.lists[node.output[0]] = []


def _construct(writing: _Writing, node: NodeProto) -> None:
    writing.lists[node.output[0]] = list(node.input)


def _insert(writing: _Writing, node: NodeProto) -> None:
    parts = list(writing.parts(node.input[0]))
    at = writing.position(node, 2, len(parts))
    if not -len(parts) <= at <= len(parts):
        raise _UnknownError
    parts.insert(at, node.input[1])
    writing.lists[node.output[0]] = parts


def _erase(writing: _Writing, node: NodeProto) -> None:
    parts = list(writing.parts(node.input[0]))
    at = writing.position(node, 1, -1)
    if not -len(parts) <= at < len(parts):
        raise _UnknownError
    del parts[at]
    writing.lists[node.output[0]] = parts


def _at(writing: _Writing, node: NodeProto) -> None:
    held, at = writing.lists.get(node.input[0]), writing.position(node, 1, 0)
    if isinstance(held, _Chunks):
        writing.cut(held, at, node.output[0], label(node))
        return
    parts = writing.parts(node.input[0])
    if not -len(parts) <= at < len(parts):
        raise _UnknownError
    writing.write("Identity", [parts[at]], [node.output[0]], label(node))


def _length(writing: _Writing, node: NodeProto) -> None:
    count = numpy_helper.from_array(np.array(len(writing.parts(node.input[0])), np.int64))
    writing.write("Constant", [], [node.output[0]], label(node), value=count)


def _concat(writing: _Writing, node: NodeProto) -> None:
    parts, axis, target = writing.parts(node.input[0]), _attribute(node, "axis", 0), node.output[0]
    if not parts:
        raise _UnknownError
    if _attribute(node, "new_axis", 0):
        stacked = [writing.names.unique(f"{target}_part") for _ in parts]
        for part, name in zip(parts, stacked, strict=True):
            writing.along("Unsqueeze", part, name, axis, name)
        parts = stacked
    writing.write("Concat", parts, [target], label(node), axis=axis)


def _split(writing: _Writing, node: NodeProto) -> None:
    sizes, axis = writing.numbers(node, 1), _attribute(node, "axis", 0)
    if sizes is None or sizes.ndim == 0:
        size = 1 if sizes is None else int(sizes)
        keep = sizes is not None or bool(_attribute(node, "keepdims", 1))
        if size < 1:
            raise _UnknownError
        writing.lists[node.output[0]] = _Chunks(node.input[0], axis, size, keep)
        return
    parts = [writing.names.unique(f"{node.output[0]}_{index}") for index in range(len(sizes))]
    writing.lists[node.output[0]] = parts
    if writing.opset < 13:
        writing.write("Split", [node.input[0]], parts, label(node), axis=axis, split=sizes.tolist())
    else:
        given = writing.constant(sizes, f"{node.output[0]}_sizes")
        writing.write("Split", [node.input[0], given], parts, label(node), axis=axis)


_WRITERS: dict[str, Callable[[_Writing, NodeProto], None]] = {
    "SequenceEmpty": _empty,
    "SequenceConstruct": _construct,
    "SequenceInsert": _insert,
    "SequenceErase": _erase,
    "SequenceAt": _at,
    "SequenceLength": _length,
    "ConcatFromSequence": _concat,
    "SplitToSequence": _split,
}

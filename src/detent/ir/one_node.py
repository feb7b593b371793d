"""One node of ONNX, computed by ONNX Runtime."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy.typing as npt
import onnx
from onnx import NodeProto, helper

__all__ = ["OneNode", "captured_names"]

Array = npt.NDArray[Any]


class OneNode:
    """Takes its inputs, then what the graphs inside of it read from outside; an absent input is None. Gives the outputs
    that have a name. Sessions are made when the types of the inputs are seen, and are neither copied nor pickled."""

    def __init__(self, node: NodeProto, opset: int):
        self.node, self._opset = node, opset
        self._captured = captured_names(node)
        self._sessions: dict[tuple[Any, ...], Any] = {}

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_sessions": {}}

    def __repr__(self) -> str:
        return f"{self.node.op_type} {self.node.name!r}"

    def __call__(self, *inputs: Array | None) -> list[Any]:
        given = self._named(inputs)
        found: list[Any] = self.session(*inputs).run(None, {n: each for n, each in given.items() if each is not None})
        return found

    def session(self, *inputs: Array | None) -> Any:
        """The session for inputs of these types, whatever their numbers are."""
        given = self._named(inputs)
        key = tuple((name, None if each is None else each.dtype.str) for name, each in given.items())
        if key not in self._sessions:
            self._sessions[key] = self._session(given)
        return self._sessions[key]

    def _named(self, inputs: Sequence[Array | None]) -> dict[str, Array | None]:
        places = [f"detent.{index}" for index in range(len(inputs) - len(self._captured))]
        return dict(zip([*places, *self._captured], inputs, strict=True))

    def _session(self, given: Mapping[str, Array | None]) -> Any:
        import onnxruntime  # where it is used: it is not fast to import

        node = NodeProto()
        node.CopyFrom(self.node)
        inputs = [name for name in given if name not in self._captured]
        node.input[:] = [name if given[name] is not None else "" for name in inputs]
        ports = [
            helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), None)
            for name, array in given.items()
            if array is not None
        ]
        ends = [onnx.ValueInfoProto(name=name) for name in node.output if name]
        graph = helper.make_graph([node], "one", ports, ends)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", self._opset)], ir_version=10)
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads, options.log_severity_level = 1, 3
        content = model.SerializeToString()
        return onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])


def captured_names(node: NodeProto) -> list[str]:
    """What the graphs inside of a node read from outside."""
    found: dict[str, None] = {}
    for attribute in node.attribute:
        for graph in (*([attribute.g] if attribute.HasField("g") else []), *attribute.graphs):
            own = {value.name for value in (*graph.input, *graph.initializer)}
            own.update(name for inner in graph.node for name in inner.output)
            read = [name for inner in graph.node for name in (*inner.input, *captured_names(inner))]
            read += [value.name for value in graph.output]
            found.update(dict.fromkeys(name for name in read if name and name not in own))
    return list(found)

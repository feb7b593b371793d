"""The shape of every tensor of a network for one size of its inputs, and the numbers that follow from sizes alone.

Exporters write `x.view(b, -1, c)` as Shape, Gather, Concat and Reshape. ONNX's own inference stops there; with all
sizes of the inputs given, these are nodes that compute from constants, and every shape behind them is known.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import helper, numpy_helper
from onnx.reference import ReferenceEvaluator

__all__ = ["Known", "known_sizes"]

Array = npt.NDArray[Any]

_LARGEST = 1 << 22  # elements of what is computed ahead
_SMALL = 1024  # elements; what says a shape has fewer
_COUNTED = 22  # the opset whose inference does not count a pool's last window where that begins outside
_NOT_COMPUTED = (
    "DequantizeLinear",
    "QuantizeLinear",
    "RandomNormal",
    "RandomUniform",
    "Bernoulli",
    "If",
    "Loop",
    "Scan",
)


@dataclass(frozen=True)
class Known:
    """`shapes` of tensors, and `values` of those that do not depend on the numbers in the inputs."""

    shapes: Mapping[str, tuple[int, ...]]
    values: Mapping[str, Array]


def known_sizes(model: onnx.ModelProto, free: int, *, strict: bool = False) -> Known:
    """What is known if every free size of the inputs is `free`.

    A node whose inputs do not fit together gives tensors of unknown shape; with `strict` it raises
    `onnx.shape_inference.InferenceError`.
    """
    sizing = _Sizing(model, free)
    for node in model.graph.node:
        sizing.take(node, strict=strict)
    return Known(
        {name: shape for name, kind in sizing.types.items() if (shape := _shape(kind)) is not None}, sizing.values
    )


class _Sizing:
    def __init__(self, model: onnx.ModelProto, free: int):
        self._opsets = list(model.opset_import)
        self._opset = next(o.version for o in model.opset_import if o.domain in ("", "ai.onnx"))
        self.types: dict[str, onnx.TypeProto] = {}
        self.values: dict[str, Array] = {}
        for tensor in model.graph.initializer:
            self.types[tensor.name] = helper.make_tensor_type_proto(tensor.data_type, list(tensor.dims))
            if math.prod(tensor.dims) <= _LARGEST and tensor.data_type in _TYPES:
                self.values[tensor.name] = numpy_helper.to_array(tensor)
        for value in model.graph.input:
            if value.name not in self.types:
                self.types[value.name] = _with_size(value.type, free)

    def take(self, node: onnx.NodeProto, *, strict: bool) -> None:
        computed = self._computed(node)
        if computed is not None:
            for name, array in computed.items():
                kind = helper.np_dtype_to_tensor_dtype(array.dtype)
                self.types[name] = helper.make_tensor_type_proto(kind, array.shape)
                self.values[name] = array
            return
        held = {name: self.types[name] for name in node.input if name in self.types}
        small = {
            name: self.values[name] for name in node.input if name in self.values and self.values[name].size <= _SMALL
        }
        data = {name: numpy_helper.from_array(np.asarray(array), name) for name, array in small.items()}
        try:
            version = max(self._opset, _COUNTED) if node.op_type in ("MaxPool", "AveragePool") else self._opset
            schema = onnx.defs.get_schema(node.op_type, version, node.domain)
            found = onnx.shape_inference.infer_node_outputs(schema, node, held, data, opset_imports=self._opsets)
        except onnx.shape_inference.InferenceError:
            if strict:
                raise
        except Exception:  # an operator that onnx does not know, or parts of it that are not there
            return
        else:
            self.types.update(found)

    def _computed(self, node: onnx.NodeProto) -> dict[str, Array] | None:
        """What the node gives, if it depends on sizes and constants alone."""
        names = [name for name in node.input if name]
        if node.op_type in ("Shape", "Size") and not node.domain:
            shape = _shape(self.types.get(node.input[0], onnx.TypeProto()))
            values = {} if shape is None else {node.input[0]: np.broadcast_to(np.float32(0), shape)}
        else:
            values = {name: self.values[name] for name in names if name in self.values}
        if node.domain or node.op_type in _NOT_COMPUTED or len(values) < len(set(names)):
            return None
        try:
            results = ReferenceEvaluator(self._alone(node)).run(None, values)
        except Exception:  # the evaluator does not have everything
            return None
        given = [np.asarray(result) for result in results]
        if any(array.size > _LARGEST or array.dtype == object for array in given):
            return None
        return dict(zip([name for name in node.output if name], given, strict=True))

    def _alone(self, node: onnx.NodeProto) -> onnx.ModelProto:
        """A model of one node: given a node, the evaluator takes the newest meaning of it."""
        inputs = [onnx.ValueInfoProto(name=name) for name in dict.fromkeys(node.input) if name]
        outputs = [onnx.ValueInfoProto(name=name) for name in node.output if name]
        graph = helper.make_graph([node], node.op_type, inputs, outputs)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", self._opset)])


_TYPES = tuple(helper.np_dtype_to_tensor_dtype(np.dtype(kind)) for kind in ("float32", "int64", "int32", "bool"))


def _shape(kind: onnx.TypeProto) -> tuple[int, ...] | None:
    if not kind.tensor_type.HasField("shape"):
        return None
    dims = kind.tensor_type.shape.dim
    return tuple(dim.dim_value for dim in dims) if all(dim.HasField("dim_value") for dim in dims) else None


def _with_size(kind: onnx.TypeProto, free: int) -> onnx.TypeProto:
    fixed = onnx.TypeProto()
    fixed.CopyFrom(kind)
    for dim in fixed.tensor_type.shape.dim:
        if not dim.HasField("dim_value"):
            dim.dim_value = free
    return fixed

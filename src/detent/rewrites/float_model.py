"""Removes Q and DQ from a network, to compare an engine's integer speed with its float speed."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import onnx
from onnx import numpy_helper

from detent.errors import DeployError
from detent.ir import CLIPPED, Encoding, attribute_value
from detent.ir.qparams import BOUNDS
from detent.rewrites.undo import undo

__all__ = ["float_model"]


def float_model(model: onnx.ModelProto) -> onnx.ModelProto:
    """`model` in float32: weights are what their codes stand for, activations are not rounded.

    Nodes, tensors, inputs and outputs keep their names; what a DequantizeLinear gave to others is now the tensor that
    was quantized. An output that was dequantized, or given as codes, is a float tensor of the same name. Integers
    that the network takes in are still dequantized: they are no quantization of ours. Rewrites that can be undone
    are.
    """
    found = onnx.ModelProto()
    found.CopyFrom(model)
    graph = found.graph
    dissolved, constants = _dissolve(graph)
    kept = [
        node
        for node in graph.node
        if not dissolved.keys() & set(node.output) and not constants.keys() & set(node.output)
    ]
    for node in _nodes(graph):
        node.input[:] = [_source(dissolved, name) for name in node.input]
    ends = [
        onnx.helper.make_node("Identity", [_source(dissolved, value.name)], [value.name], name=value.name)
        for value in graph.output
        if value.name in dissolved
    ]
    for value in graph.output:
        if value.name in dissolved:
            value.type.tensor_type.elem_type = onnx.TensorProto.FLOAT
    del graph.node[:]
    graph.node.extend([*kept, *ends])
    graph.initializer.extend(numpy_helper.from_array(array, name) for name, array in constants.items())
    undo(found)
    _drop_unused(graph)
    return found


def _dissolve(graph: onnx.GraphProto) -> tuple[dict[str, str], dict[str, np.ndarray]]:
    """What each tensor that Q, DQ or a Clip for a Q gives is replaced with: another tensor, or a constant."""
    arrays = {tensor.name: tensor for tensor in graph.initializer}
    for node in graph.node:
        if node.op_type == "Constant":
            arrays.update((node.output[0], a.t) for a in node.attribute if a.name == "value")
    given = {value.name for value in graph.input} - arrays.keys()
    clips = {node.output[0]: node for node in graph.node if node.op_type == "Clip" and node.output[0].endswith(CLIPPED)}
    same: dict[str, str] = {}
    constants: dict[str, np.ndarray] = {}
    for node in graph.node:
        if node.op_type == "QuantizeLinear":
            source = node.input[0]
            if source in clips:
                same[source] = clips[source].input[0]
            same[node.output[0]] = source
        elif node.op_type == "DequantizeLinear" and node.input[0] in arrays:
            constants[node.output[0]] = _dequantized(node, arrays)
        elif node.op_type == "DequantizeLinear" and node.input[0] not in given:
            same[node.output[0]] = node.input[0]
    return same, constants


def _dequantized(node: onnx.NodeProto, arrays: dict[str, onnx.TensorProto]) -> np.ndarray:
    codes = arrays[node.input[0]]
    dtype = onnx.TensorProto.DataType.Name(codes.data_type).lower()
    if dtype not in BOUNDS or any(name and name not in arrays for name in node.input[1:]):
        raise DeployError(
            f"the float network behind DequantizeLinear {node.name!r}",
            f"it holds {dtype} codes, or its scale is computed",
            f"give constant scales, and codes of {', '.join(BOUNDS)}",
        )
    scale = numpy_helper.to_array(arrays[node.input[1]])
    zero_point = np.zeros(scale.shape, np.int64)
    if len(node.input) > 2 and node.input[2]:
        zero_point = numpy_helper.to_array(arrays[node.input[2]]).astype(np.int64)
    attributes = {a.name: a.i for a in node.attribute}
    axis = attribute_value(node.op_type, attributes, "axis") if scale.ndim else None
    encoding = Encoding(scale, zero_point, dtype, axis, attributes.get("block_size") or None)
    return encoding.dequantize(numpy_helper.to_array(codes))


def _source(same: dict[str, str], name: str) -> str:
    while name in same:
        name = same[name]
    return name


def _nodes(graph: onnx.GraphProto) -> Iterator[onnx.NodeProto]:
    """The nodes of a graph and of the graphs inside of its control flow."""
    for node in graph.node:
        yield node
        for attribute in node.attribute:
            if attribute.HasField("g"):
                yield from _nodes(attribute.g)


def _drop_unused(graph: onnx.GraphProto) -> None:
    """Scales, zero points, codes, and what is said about tensors that are gone."""
    used = {name for node in _nodes(graph) for name in (*node.input, *node.output)}
    used |= {value.name for value in graph.output}
    for field in (graph.initializer, graph.value_info):
        held = [item for item in field if item.name in used]
        del field[:]
        field.extend(held)

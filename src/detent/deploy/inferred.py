"""The shapes of the tensors of a model, inferred without its weights: inference copies all that it is handed."""

from __future__ import annotations

import math

import onnx
from onnx import helper

__all__ = ["Shape", "shapes_of"]

Shape = tuple[int | str, ...]
"""Sizes, or the names of free ones."""

_SMALL = 1024  # elements; a constant that says a shape or axes has fewer


def shapes_of(model: onnx.ModelProto) -> dict[str, Shape]:
    """Of every tensor whose shape is stated or can be inferred, constants included."""
    try:
        graph = onnx.shape_inference.infer_shapes(_without_weights(model), data_prop=True).graph
    except onnx.shape_inference.InferenceError:
        graph = model.graph
    found = {
        value.name: _shape(value)
        for value in (*graph.input, *graph.value_info, *graph.output)
        if value.type.HasField("tensor_type") and value.type.tensor_type.HasField("shape")
    }
    return found | {tensor.name: tuple(tensor.dims) for tensor in model.graph.initializer}


def _shape(value: onnx.ValueInfoProto) -> Shape:
    dims = value.type.tensor_type.shape.dim
    return tuple(dim.dim_value if dim.HasField("dim_value") else dim.dim_param or "?" for dim in dims)


def _without_weights(model: onnx.ModelProto) -> onnx.ModelProto:
    """The same nodes with large constants as inputs."""
    graph = model.graph
    large = {tensor.name: tensor for tensor in graph.initializer if math.prod(tensor.dims) > _SMALL}
    inputs = [value for value in graph.input if value.name not in large]
    inputs += [helper.make_tensor_value_info(name, one.data_type, one.dims) for name, one in large.items()]
    small = [tensor for tensor in graph.initializer if tensor.name not in large]
    return onnx.ModelProto(
        ir_version=max(model.ir_version, 4),
        opset_import=model.opset_import,
        functions=model.functions,
        graph=onnx.GraphProto(
            name=graph.name,
            node=graph.node,
            input=inputs,
            output=graph.output,
            initializer=small,
            value_info=graph.value_info,
        ),
    )

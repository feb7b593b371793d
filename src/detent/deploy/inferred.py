"""The shapes of the tensors of a model, inferred without its weights: inference copies all that it is handed."""

from __future__ import annotations

import math
from collections.abc import Mapping

import onnx
from onnx import helper

from detent.deploy.known_sizes import known_sizes

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
    found |= {tensor.name: tuple(tensor.dims) for tensor in model.graph.initializer}
    return found if _complete(model, found) and not _rounds_up(model) else found | _by_trying(model, found)


def _rounds_up(model: onnx.ModelProto) -> bool:
    """Whether there is a pool with `ceil_mode`, whose size the inference of older opsets has wrong."""
    pools = [node for node in model.graph.node if node.op_type in ("MaxPool", "AveragePool")]
    return any(attribute.name == "ceil_mode" and attribute.i for node in pools for attribute in node.attribute)


def _complete(model: onnx.ModelProto, found: Mapping[str, Shape]) -> bool:
    """Whether every tensor has a shape in which only the sizes are free that the inputs have."""
    free = {size for value in model.graph.input for size in found.get(value.name, ()) if isinstance(size, str)}
    sizes = [found.get(name, ("?",)) for node in model.graph.node for name in node.output if name]
    return all(isinstance(size, int) or (size in free and size != "?") for shape in sizes for size in shape)


def _by_trying(model: onnx.ModelProto, found: Mapping[str, Shape]) -> dict[str, Shape]:
    """Shapes behind sizes that are computed: those that are the same for inputs of two sizes are known."""
    ones, twos = known_sizes(model, 1).shapes, known_sizes(model, 2).shapes
    tried: dict[str, Shape] = {}
    for name in ones.keys() & twos.keys():
        names = found.get(name, ())
        names = names if len(names) == len(ones[name]) else ("?",) * len(ones[name])
        pairs = zip(ones[name], twos[name], names, strict=True)
        tried[name] = tuple(one if one == two else str(size) for one, two, size in pairs)
    return tried


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

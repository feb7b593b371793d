"""Shape inference: the shapes of a network's tensors.

Exporters write `x.view(b, -1, c)` as Shape, Gather, Concat and Reshape. ONNX's own inference stops there. If all input
sizes are known, these nodes compute from constants, and every shape after them is known: sizes are tried.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import onnx
from onnx import helper

from detent.ir.free_sizes import is_free, signature_of, try_sizes

__all__ = ["Shape", "shapes_of"]

Shape = tuple[int | str, ...]
"""Sizes, or the names of free ones; "?" for one that has no name."""

_SMALL = 1024  # elements; a constant that says a shape or axes has fewer
_POOLS = ("MaxPool", "AveragePool")


def shapes_of(model: onnx.ModelProto) -> dict[str, Shape]:
    """The shape of every tensor for which it is stated or can be inferred, constants included.

    Inference copies all that it is handed, so it gets the model without its weights.
    """
    try:
        graph = onnx.shape_inference.infer_shapes(_without_weights(model), data_prop=True).graph
    except onnx.shape_inference.InferenceError:
        graph = model.graph
    found = {
        value.name: _named_shape(value)
        for value in (*graph.input, *graph.value_info, *graph.output)
        if value.type.HasField("tensor_type") and value.type.tensor_type.HasField("shape")
    }
    found |= {tensor.name: tuple(tensor.dims) for tensor in model.graph.initializer}
    if _is_complete(model, found) and not _rounds_up(model):
        return found
    tries = try_sizes(model)
    for name in {name for known in tries for name in known.shapes}:
        signature, names = signature_of(name, tries), found.get(name, ())
        if signature is not None:
            names = names if len(names) == len(signature) else ("?",) * len(signature)
            found[name] = tuple(_size(*pair) for pair in zip(signature, names, strict=True))
    return found


def _size(size: int, stated: int | str) -> int | str:
    return size if size >= 0 else stated if isinstance(stated, str) else "?"


def _rounds_up(model: onnx.ModelProto) -> bool:
    """Whether there is a pool with `ceil_mode`, whose size the inference of older opsets has wrong."""
    pools = [node for node in model.graph.node if node.op_type in _POOLS]
    return any(attribute.name == "ceil_mode" and attribute.i for node in pools for attribute in node.attribute)


def _is_complete(model: onnx.ModelProto, found: Mapping[str, Shape]) -> bool:
    """Whether every tensor has a shape in which only the sizes are free that the inputs have."""
    free = {size for value in model.graph.input for size in found.get(value.name, ()) if isinstance(size, str)}
    sizes = [found.get(name, ("?",)) for node in model.graph.node for name in node.output if name]
    return all(isinstance(size, int) or (size in free and size != "?") for shape in sizes for size in shape)


def _named_shape(value: onnx.ValueInfoProto) -> Shape:
    dims = value.type.tensor_type.shape.dim
    return tuple(dim.dim_param or "?" if is_free(dim) else dim.dim_value for dim in dims)


def _without_weights(model: onnx.ModelProto) -> onnx.ModelProto:
    """A copy of the model with large constants as inputs, which makes inference cheap."""
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

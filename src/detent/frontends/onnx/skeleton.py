"""The file's model without the weights that the modules of the graph hold, so that weights are in memory once."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping

from onnx import GraphProto, ModelProto, NodeProto, TensorProto

from detent.frontends.onnx.call import label
from detent.frontends.onnx.reading.files import all_graphs
from detent.frontends.onnx.source import OnnxParameter
from detent.ir.protos import without_initializers

__all__ = ["is_left_out", "reads", "without_parameters"]

_SMALL = 1024  # elements; not worth it below
_VALUES = ("float_data", "double_data", "int32_data", "int64_data", "uint64_data", "string_data")


def reads(node: NodeProto) -> set[str]:
    """The tensors a node takes, those that its subgraphs take from outside included."""
    found = {name for name in node.input if name}
    for graph in _subgraphs(node):
        for inner in all_graphs(graph):
            for part in inner.node:
                found.update(name for name in part.input if name)
            found.update(value.name for value in inner.output)
    return found


def _subgraphs(node: NodeProto) -> Iterator[GraphProto]:
    for attribute in node.attribute:
        if attribute.HasField("g"):
            yield attribute.g
        yield from attribute.graphs


def is_left_out(tensor: TensorProto) -> bool:
    """Whether `without_parameters` took the values away."""
    held = tensor.HasField("raw_data") or any(len(getattr(tensor, field)) for field in _VALUES)
    return not held and math.prod(tensor.dims) > 0


def without_parameters(
    model: ModelProto, modules: Mapping[str, tuple[str, ...]], parameters: Mapping[str, OnnxParameter]
) -> ModelProto:
    """A copy of `model` in which initializers that only modules read, as weight or bias, have no values."""
    left_out = _held_only(model.graph, modules, parameters)
    kept = without_initializers(model)
    for tensor in model.graph.initializer:
        if tensor.name in left_out:
            kept.graph.initializer.add(name=tensor.name, data_type=tensor.data_type, dims=tensor.dims)
        else:
            kept.graph.initializer.add().CopyFrom(tensor)
    # Before IR version 4 initializers were inputs too, which a weight that is quantized cannot be.
    inputs = [value for value in kept.graph.input if value.name not in {one.name for one in model.graph.initializer}]
    del kept.graph.input[:]
    kept.graph.input.extend(inputs)
    kept.ir_version = max(kept.ir_version, 4)
    return kept


def _held_only(
    graph: GraphProto, modules: Mapping[str, tuple[str, ...]], parameters: Mapping[str, OnnxParameter]
) -> set[str]:
    readers: dict[str, list[str]] = {}
    for node in graph.node:
        for name in reads(node):
            readers.setdefault(name, []).append(label(node))
    holders: dict[str, set[str]] = {}
    for path, origin in parameters.items():
        module, _, part = path.rpartition(".")
        if part in ("weight", "bias") and module in modules and origin.row is None:
            holders.setdefault(origin.initializer, set()).update(modules[module])
    labels = Counter(label(node) for node in graph.node)
    ends = {value.name for value in graph.output}
    return {
        tensor.name
        for tensor in graph.initializer
        if tensor.name in holders
        and tensor.name not in ends
        and math.prod(tensor.dims) > _SMALL
        and all(reader in holders[tensor.name] and labels[reader] == 1 for reader in readers.get(tensor.name, ()))
    }

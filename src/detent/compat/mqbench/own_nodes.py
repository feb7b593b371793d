"""The network with nodes of its own for quantization, as MQBench exports it, and the same without them again."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import torch
from onnx import helper, numpy_helper

from detent.compat.mqbench.base import Simulating
from detent.compat.mqbench.symbolic import SymbolicGraph, Value, applied_in
from detent.graph import PreparedModel, quantizers_of
from detent.ir import DeployedTensor
from detent.ir.metadata import is_code_range, read_stored_as
from detent.numerics import LogGrid, Scheme
from detent.rewrites import float_model
from detent.targets.base import Deployment

__all__ = ["LOGARITHMIC", "OwnNode", "own_nodes_of", "wants_own_nodes", "with_own_nodes", "without_own_nodes"]

LOGARITHMIC = "NNIEQuantize"
"""MQBench's node for the logarithmic grid: the tensor and its greatest magnitude."""

Write = Callable[[SymbolicGraph, Value], Value]


@dataclass(frozen=True, eq=False)
class OwnNode:
    """A node that is no operation of ONNX and whose inputs but the first are constants."""

    node: onnx.NodeProto
    constants: tuple[npt.NDArray[Any], ...]

    @property
    def tensor(self) -> str:
        return str(self.node.input[0])

    @property
    def attributes(self) -> dict[str, Any]:
        return {one.name: helper.get_attribute_value(one) for one in self.node.attribute}


def wants_own_nodes(prepared: PreparedModel) -> bool:
    """Whether a quantizer is a user's own, or its grid none of ONNX's."""
    return any(isinstance(one, Simulating) or _is_logarithmic(one.scheme) for one in quantizers_of(prepared))


def _is_logarithmic(scheme: Scheme) -> bool:
    """Asked by type: MQBench has a node for this very kind of grid."""
    return isinstance(scheme.grid, LogGrid)


def with_own_nodes(prepared: PreparedModel, deployment: Deployment) -> onnx.ModelProto | None:
    """The deployed network in which a user's Functions, and logarithmic grids, are nodes; None if it has neither.

    The other tensors keep their Q and DQ.
    """
    model = onnx.ModelProto()
    model.CopyFrom(deployment.model)
    _detach_outputs(model.graph)
    plain = {one.name: numpy_helper.to_array(one) for one in float_model(model).graph.initializer}
    quantizers = {deployment.names.get(one.name, one.name): one for one in quantizers_of(prepared)}
    made: dict[str, SymbolicGraph] = {}
    for tensor in deployment.tensors:
        for source, readers in _reads(model, tensor).items():
            example = _example(source, plain, deployment)
            write = _writer(tensor, quantizers.get(tensor.shares or tensor.tensor), example)
            if write is None:
                continue
            made[source] = SymbolicGraph(source)
            given = write(made[source], Value(source))
            for node, place in readers:
                node.input[place] = given.name
    if not made:
        return None
    _place(model, made, plain)
    return model


def own_nodes_of(model: onnx.ModelProto) -> Iterator[OwnNode]:
    """In the order of the graph."""
    arrays = {one.name: numpy_helper.to_array(one) for one in model.graph.initializer}
    for node in model.graph.node:
        if not onnx.defs.has(node.op_type, node.domain) and all(name in arrays for name in node.input[1:]):
            yield OwnNode(node, tuple(arrays[name] for name in node.input[1:]))


def without_own_nodes(model: onnx.ModelProto) -> onnx.ModelProto:
    """Whoever read what such a node gives reads the tensor itself."""
    found = onnx.ModelProto()
    found.CopyFrom(model)
    own = {one.node.output[0]: one for one in own_nodes_of(model)}
    for node in found.graph.node:
        node.input[:] = [own[name].tensor if name in own else name for name in node.input]
    kept = [node for node in found.graph.node if node.output[0] not in own]
    ends = [value.name for value in found.graph.output if value.name in own]
    kept += [helper.make_node("Identity", [own[name].tensor], [name], name=name) for name in ends]
    _set(found.graph.node, kept)
    _drop_unused(found.graph)
    return found


def _detach_outputs(graph: onnx.GraphProto) -> None:
    """An output of the network that a DequantizeLinear gives is read off it by an Identity, a reader like others."""
    outputs = {value.name for value in graph.output}
    for node in [one for one in graph.node if one.op_type == "DequantizeLinear" and one.output[0] in outputs]:
        name = str(node.output[0])
        node.output[0] = f"{name}_given"
        graph.node.append(helper.make_node("Identity", [node.output[0]], [name], name=name))


def _writer(tensor: DeployedTensor, quantizer: Any, example: torch.Tensor) -> Write | None:
    if _is_logarithmic(tensor.scheme):
        magnitude = torch.from_numpy(np.array(tensor.scale, np.float32))
        return lambda graph, source: graph.op(
            f"::{LOGARITHMIC}", source, graph.constant(magnitude, f"{graph.stem}/magnitude")
        )
    if not isinstance(quantizer, Simulating):
        return None
    found = applied_in(quantizer.inner, example)
    return None if found is None else found.write


def _example(source: str, plain: dict[str, npt.NDArray[Any]], deployment: Deployment) -> torch.Tensor:
    if source in plain:
        return torch.from_numpy(np.array(plain[source]))
    shape = deployment.graph.shapes.get(source, (1,))
    draw = torch.Generator().manual_seed(0)
    return torch.randn([size if isinstance(size, int) else 1 for size in shape], generator=draw)


Reader = tuple[onnx.NodeProto, int]


def _reads(model: onnx.ModelProto, tensor: DeployedTensor) -> dict[str, list[Reader]]:
    """What is quantized, and who reads it so: behind a DequantizeLinear, or where the grid is none of ONNX's."""
    graph, stored_as = model.graph, read_stored_as(model)
    if _is_logarithmic(tensor.scheme):
        found = [(node, place) for node, place in _inputs(graph, tensor.tensor) if _uses(node, tensor)]
        return {tensor.tensor: found} if found else {}
    made_by = {name: node for node in graph.node for name in node.output}
    sources: dict[str, list[Reader]] = {}
    for node in graph.node:
        if node.op_type != "DequantizeLinear":
            continue
        source = _source(node, made_by)
        readers = list(_inputs(graph, node.output[0]))
        stored = stored_as.get(source)
        if readers and (source if stored is None else stored.parameter) == tensor.tensor:
            sources.setdefault(source, []).extend(readers)
    return sources


def _source(dequantize: onnx.NodeProto, made_by: Mapping[str, onnx.NodeProto]) -> str:
    """The tensor that is quantized; codes that are stored are those of what comes out."""
    quantize = made_by.get(dequantize.input[0])
    if quantize is None:
        return str(dequantize.output[0])
    clip = made_by.get(quantize.input[0])
    return str(clip.input[0] if clip is not None and is_code_range(clip) else quantize.input[0])


def _uses(node: onnx.NodeProto, tensor: DeployedTensor) -> bool:
    return tensor.role != "activation" or not tensor.users or node.name in tensor.users


def _inputs(graph: onnx.GraphProto, name: str) -> Iterator[Reader]:
    for node in graph.node:
        yield from ((node, place) for place, one in enumerate(node.input) if one == name)


def _place(model: onnx.ModelProto, made: Mapping[str, SymbolicGraph], plain: Mapping[str, npt.NDArray[Any]]) -> None:
    """Each new node behind what gives its tensor; weights are floats again."""
    graph = model.graph
    held = {one.name for one in graph.initializer}
    new = {source: plain[source] for source in made if source in plain and source not in held}
    graph.initializer.extend(numpy_helper.from_array(array, name) for name, array in new.items())
    graph.initializer.extend(one for each in made.values() for one in each.initializers)
    nodes = [node for node in graph.node if node.output[0] not in new]
    given = {name for node in nodes for name in node.output}
    ordered = [one for source, each in made.items() if source not in given for one in each.nodes]
    for node in nodes:
        ordered.append(node)
        ordered += [one for name in node.output if name in made for one in made[name].nodes]
    _set(graph.node, ordered)
    _drop_unused(graph)
    known = {one.domain for one in model.opset_import}
    used = dict.fromkeys(node.domain for node in graph.node)
    model.opset_import.extend(helper.make_opsetid(domain, 1) for domain in used if domain not in known)


def _drop_unused(graph: onnx.GraphProto) -> None:
    """Nodes that nothing is read of, and initializers that nobody reads."""
    needed = {value.name for value in graph.output}
    kept: list[onnx.NodeProto] = []
    for node in reversed(graph.node):
        if needed.intersection(node.output):
            needed.update(node.input)
            kept.append(node)
    _set(graph.node, kept[::-1])
    _set(graph.initializer, [one for one in graph.initializer if one.name in needed])


def _set(field: Any, held: list[Any]) -> None:
    copies = [type(one).FromString(one.SerializeToString()) for one in held]
    del field[:]
    field.extend(copies)

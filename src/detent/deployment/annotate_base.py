"""The model of the file before quantization, into which `annotate` inserts Q and DQ, and how to find its parts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy.typing as npt
import onnx
import onnx.version_converter
from onnx import helper, numpy_helper

from detent.errors import DeployError
from detent.frontends.onnx import OnnxSource, is_left_out
from detent.ir import Trait, ops_with
from detent.ir.declared_opset import declare_opset_20
from detent.ir.shapes import Known, known_sizes
from detent.rewrites import float_model

__all__ = ["base_model", "in_order", "needed", "place_of", "without_copied_outputs"]


def base_model(source: OnnxSource, opset: int) -> tuple[onnx.ModelProto, dict[str, str]]:
    """The file's model without quantization of its own, in an opset that has per-channel Q and DQ; and of nodes that
    another opset needs before one of the file's, the name of that one."""
    model = float_model(source.model)
    # What no output needs was not read: it may take tensors that are gone.
    kept = needed(list(model.graph.node), {value.name for value in model.graph.output})
    del model.graph.node[:]
    model.graph.node.extend(kept)
    parts: dict[str, str] = {}
    found = next(o.version for o in model.opset_import if o.domain in ("", "ai.onnx"))
    if found < max(13, opset if opset > 17 else 13):
        before = {node.name: set(node.input) for node in model.graph.node if node.name}
        model = _converted(model, max(opset, 13))
        parts = _inserted(model.graph, before)
    declare_opset_20(model, opset)
    if model.ir_version < 8:
        model.ir_version = 8
    if opset >= 21 and model.ir_version < 10:
        model.ir_version = 10
    for node in model.graph.node:
        node.name = node.name or node.output[0]
    _store_folded(model.graph, source.folded)
    return model, parts


def _store_folded(graph: onnx.GraphProto, folded: Mapping[str, npt.NDArray[Any]]) -> None:
    """Nodes that compute from constants alone, such as a shape: their results are stored, because not every engine's
    reader computes them."""
    ends = {value.name for value in graph.output}
    kept = []
    for node in graph.node:
        given = [name for name in node.output if name]
        if all(name in folded and name not in ends for name in given):
            graph.initializer.extend(numpy_helper.from_array(folded[name], name) for name in given)
        else:
            kept.append(node)
    del graph.node[:]
    graph.node.extend(kept)


def _converted(model: onnx.ModelProto, opset: int) -> onnx.ModelProto:
    """In another opset. Initializers without values are inputs for the time of it: the converter reads what it sees."""
    graph, absent = model.graph, [one for one in model.graph.initializer if is_left_out(one)]
    inputs, names = list(graph.input), {one.name for one in absent}
    graph.input.extend(
        helper.make_tensor_value_info(one.name, one.data_type, one.dims)
        for one in absent
        if one.name not in {value.name for value in inputs}
    )
    present = [one for one in graph.initializer if one.name not in names]
    del graph.initializer[:]
    graph.initializer.extend(present)
    _state_ranks(graph, known_sizes(model, 1))
    named = {node.output[0]: node.name for node in graph.node}
    converted = onnx.version_converter.convert_version(model, opset)
    taken = {node.name for node in converted.graph.node}
    for node in converted.graph.node:
        if not node.name and named.get(node.output[0], "") not in taken:
            node.name = named[node.output[0]]  # it was put in another's place
    del converted.graph.input[:]
    converted.graph.input.extend(inputs)
    converted.graph.initializer.extend(absent)
    return converted


def _inserted(graph: onnx.GraphProto, before: Mapping[str, set[str]]) -> dict[str, str]:
    """Nodes without a name that read what another node read before they were there, by what they give."""
    now = {node.name: set(node.input) for node in graph.node if node.name}
    lost = {tensor: name for name, inputs in before.items() for tensor in inputs - now.get(name, inputs) if tensor}
    return {
        node.output[0]: lost[node.input[0]]
        for node in graph.node
        if not node.name and node.input and node.input[0] in lost
    }


def _state_ranks(graph: onnx.GraphProto, known: Known) -> None:
    """Before opset 13 a softmax is one over all axes from its own on. Only where the converter knows that it is the
    last one it leaves the node as it is, between what is quantized."""
    stated = {value.name for value in (*graph.value_info, *graph.input)}
    taken = {node.input[0] for node in graph.node if node.op_type in ("Softmax", "LogSoftmax", "Hardmax")} - stated
    graph.value_info.extend(
        helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [f"{name}_{axis}" for axis in range(len(shape))])
        for name in taken
        if (shape := known.shapes.get(name)) is not None
    )


def without_copied_outputs(graph: onnx.GraphProto) -> dict[str, str]:
    """Where taking out Q and DQ left an Identity before an output, the tensor itself is the output: its new name."""
    ends = {value.name for value in graph.output}
    renamed: dict[str, str] = {}
    for node in list(graph.node):
        if node.op_type == "Identity" and node.output[0] in ends and node.name == node.output[0]:
            renamed[node.input[0]] = node.output[0]
            graph.node.remove(node)
    for node in graph.node:
        node.input[:] = [renamed.get(name, name) for name in node.input]
        node.output[:] = [renamed.get(name, name) for name in node.output]
    return renamed


def place_of(nodes: list[onnx.NodeProto], which: str) -> tuple[onnx.NodeProto, int, bool] | None:
    """Where an operation reads a parameter that other nodes compute from constants (the Transpose of an initializer),
    and whether torch has it the other way round; None if it reads none."""
    main = next((node for node in nodes if node.op_type in ops_with(Trait.WEIGHTED)), None)
    if main is None:
        return _place_in_norm(nodes, which)
    if which == "weight":
        plain = main.op_type in ops_with(Trait.CONVOLUTION) or any(a.name == "transB" and a.i for a in main.attribute)
        return main, 1, not plain
    if main.op_type != "MatMul":
        return (main, 2, False) if len(main.input) > 2 and main.input[2] else None
    add = next((node for node in nodes if node.op_type == "Add"), None)
    return None if add is None else (add, 1 if add.input[0] == main.output[0] else 0, False)


def _place_in_norm(nodes: list[onnx.NodeProto], which: str) -> tuple[onnx.NodeProto, int, bool] | None:
    """The same of a norm, which is one node, or steps that end with a product and a sum."""
    norm = next((node for node in nodes if node.op_type.endswith("Normalization")), None)
    if norm is not None:
        index = 1 if which == "weight" else 2
        return (norm, index, False) if len(norm.input) > index and norm.input[index] else None
    made = {name for node in nodes for name in node.output}
    last = next((node for node in nodes[:0:-1] if node.op_type == ("Mul" if which == "weight" else "Add")), None)
    constant = [] if last is None else [index for index, name in enumerate(last.input) if name not in made]
    return (last, constant[0], False) if last is not None and len(constant) == 1 else None


def in_order(nodes: list[onnx.NodeProto], known: set[str]) -> list[onnx.NodeProto]:
    """Every node behind those that give what it reads; `known` is given from the beginning."""
    waiting, known = nodes, known | {""}
    ordered: list[onnx.NodeProto] = []
    while waiting:
        ready = [node for node in waiting if all(name in known for name in node.input)]
        if not ready:
            raise DeployError("annotate the ONNX graph", "its nodes have no order", "load the file again")
        ordered.extend(ready)
        known.update(name for node in ready for name in node.output)
        done = {id(node) for node in ready}
        waiting = [node for node in waiting if id(node) not in done]
    return ordered


def needed(nodes: list[onnx.NodeProto], wanted: set[str]) -> list[onnx.NodeProto]:
    kept: list[onnx.NodeProto] = []
    for node in reversed(nodes):
        if wanted.intersection(node.output):
            kept.append(node)
            wanted.update(node.input)
    return kept[::-1]

"""The network of the file before quantization, which `annotate` puts on grids, and how to find its parts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import onnx
import onnx.version_converter
from onnx import helper, numpy_helper

from detent.frontends.onnx import OnnxSource, is_left_out, without_initializers
from detent.ir import Network, Op, Trait, ops_with, read_qdq, write_qdq
from detent.ir.declared_opset import declared_opset
from detent.ir.free_sizes import Known, signature_of, try_sizes
from detent.rewrites.float_model import float_network

__all__ = ["base_network", "place_of"]


def base_network(source: OnnxSource, opset: int) -> tuple[Network, dict[str, str], dict[str, str]]:
    """The file's network without quantization of its own, in an opset that has per-channel Q and DQ.

    Then, of operations that another opset needs before one of the file's, the name of that one; and of tensors that
    have another name than in the file, that name. Parameters that modules hold are read, but are not there.
    """
    known = {name for names in source.nodes.values() for name in names}
    network = _without_copies(float_network(read_qdq(_readable(source))), known)
    network, renamed = _without_copied_outputs(network)
    parts: dict[str, str] = {}
    if network.opset < max(13, opset if opset > 17 else 13):
        network, parts = _converted(network, max(opset, 13))
    absent = {one.name for one in source.model.graph.initializer if is_left_out(one)}
    network = replace(
        network,
        inputs={name: port for name, port in network.inputs.items() if name not in absent},
        ops=tuple(replace(op, name=op.label) for op in network.ops),
        opset=declared_opset(network, opset),
        dtypes={},
    )
    return network.pruned(), parts, renamed


def _readable(source: OnnxSource) -> onnx.ModelProto:
    """The file's model. Initializers whose values modules hold are inputs; what is computed from constants alone, such
    as a shape or a scale, is stored: not every engine's reader computes it."""
    made = without_initializers(source.model)
    for one in source.model.graph.initializer:
        if is_left_out(one):
            made.graph.input.append(helper.make_tensor_value_info(one.name, one.data_type, one.dims))
        else:
            made.graph.initializer.append(one)
    ends = {value.name for value in made.graph.output}
    for node in source.model.graph.node:
        quantizes = node.op_type in ("QuantizeLinear", "DequantizeLinear")
        if not quantizes and all(name in source.folded and name not in ends for name in node.output if name):
            made.graph.node.remove(node)
            held = [numpy_helper.from_array(source.folded[name], name) for name in node.output if name]
            made.graph.initializer.extend(held)
    return made


def _without_copies(network: Network, known: set[str]) -> Network:
    """Readers of an inner Identity read its input: the Identity is no node of the imported graph, and one of two
    readers may read from a grid."""
    ends = {output.read.tensor for output in network.outputs}
    sources: dict[str, str] = {}
    kept = []
    for op in network.ops:
        if op.type == "Identity" and not op.metadata and op.name not in known and op.outputs[0] not in ends:
            source = op.reads[0].tensor
            sources[op.outputs[0]] = sources.get(source, source)
        else:
            kept.append(op)
    return replace(network, ops=tuple(kept)).renamed(sources) if sources else network


def _without_copied_outputs(network: Network) -> tuple[Network, dict[str, str]]:
    """If Q and DQ, or an Identity with the output's name, stood before an output, their input becomes the output: its
    new name."""
    identities = [op for op in network.ops if op.type == "Identity" and op.name == op.outputs[0]]
    copies = {op.name: op.reads[0].tensor for op in identities}
    renamed: dict[str, str] = {}
    gone: set[str] = set()
    for output in network.outputs:
        source = copies.get(output.read.tensor, output.read.tensor)
        if source != output.name and source not in renamed and network.producer(source) is not None:
            renamed[source] = output.name
            gone.update({output.read.tensor} & copies.keys())
    kept = tuple(op for op in network.ops if op.outputs[0] not in gone)
    return replace(network, ops=kept).renamed(renamed), renamed


def _converted(network: Network, opset: int) -> tuple[Network, dict[str, str]]:
    """In another opset; and of operations that were put before another, the name of that one."""
    model = write_qdq(network)
    _state_ranks(model.graph, try_sizes(model))
    before = {node.name: set(node.input) for node in model.graph.node if node.name}
    named = {node.output[0]: node.name for node in model.graph.node}
    converted = onnx.version_converter.convert_version(model, opset)
    taken = {node.name for node in converted.graph.node}
    for node in converted.graph.node:
        if not node.name and named.get(node.output[0], "") not in taken:
            node.name = named[node.output[0]]  # it was put in another's place
    return read_qdq(converted), _inserted(converted.graph, before)


def _inserted(graph: onnx.GraphProto, before: Mapping[str, set[str]]) -> dict[str, str]:
    """Nodes without a name that read what another node read before they were there, by their output."""
    now = {node.name: set(node.input) for node in graph.node if node.name}
    lost = {tensor: name for name, inputs in before.items() for tensor in inputs - now.get(name, inputs) if tensor}
    return {
        node.output[0]: lost[node.input[0]]
        for node in graph.node
        if not node.name and node.input and node.input[0] in lost
    }


def _state_ranks(graph: onnx.GraphProto, tries: Sequence[Known]) -> None:
    """Before opset 13 a softmax is one over all axes from its own on. Only where the converter knows that it is the
    last one it leaves the node as it is, between what is quantized."""
    stated = {value.name for value in (*graph.value_info, *graph.input)}
    taken = {node.input[0] for node in graph.node if node.op_type in ("Softmax", "LogSoftmax", "Hardmax")} - stated
    graph.value_info.extend(
        helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [f"{name}_{axis}" for axis in range(len(shape))])
        for name in taken
        if (shape := signature_of(name, tries)) is not None
    )


def place_of(ops: Sequence[Op], places: Sequence[int], which: str) -> tuple[int, int, bool] | None:
    """Where the operations at `places` read a parameter that others compute from constants (the Transpose of an
    initializer): the place, which input it is, and whether torch has it the other way round; None if it is not read."""
    main = next((place for place in places if ops[place].type in ops_with(Trait.WEIGHTED)), None)
    if main is None:
        return _place_in_norm(ops, places, which)
    op = ops[main]
    if which == "weight":
        plain = op.type in ops_with(Trait.CONVOLUTION) or op.attributes.get("transB")
        return main, 1, not plain
    if op.type != "MatMul":
        return (main, 2, False) if len(op.inputs) > 2 and op.inputs[2] else None
    add = next((place for place in places if ops[place].type == "Add"), None)
    return None if add is None else (add, 1 if ops[add].reads[0].tensor == op.outputs[0] else 0, False)


def _place_in_norm(ops: Sequence[Op], places: Sequence[int], which: str) -> tuple[int, int, bool] | None:
    """The same of a norm, which is one operation, or steps that end with a product and a sum."""
    norm = next((place for place in places if ops[place].type.endswith("Normalization")), None)
    if norm is not None:
        index = 1 if which == "weight" else 2
        return (norm, index, False) if len(ops[norm].inputs) > index and ops[norm].inputs[index] else None
    made = {name for place in places for name in ops[place].outputs}
    wanted = "Mul" if which == "weight" else "Add"
    last = next((place for place in places[:0:-1] if ops[place].type == wanted), None)
    constant = [] if last is None else [i for i, read in enumerate(ops[last].reads) if read.tensor not in made]
    return (last, constant[0], False) if last is not None and len(constant) == 1 else None

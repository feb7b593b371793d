"""Converts a ModelProto to a GraphModule, node by node."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import onnx
import torch
from onnx import GraphProto, ModelProto, NodeProto
from torch import fx

from detent.errors import OnnxError
from detent.frontends.onnx.builder import Constant, FxBuilder, Value
from detent.frontends.onnx.call import Call, label
from detent.frontends.onnx.canonicalize.affine_folding import fold_affine_steps
from detent.frontends.onnx.canonicalize.control_flow import branch_of, one_operation
from detent.frontends.onnx.canonicalize.decomposed import fused_function
from detent.frontends.onnx.canonicalize.flattening import inline_functions, with_branches
from detent.frontends.onnx.canonicalize.sequences import remove_sequences
from detent.frontends.onnx.canonicalize.standard import use_standard_operators
from detent.frontends.onnx.quantized.code_clips import Ends, fold_code_clips
from detent.frontends.onnx.quantized.fake_quantize import expand_fake_quantize
from detent.frontends.onnx.quantized.pairs import split_second_grids, with_relus
from detent.frontends.onnx.quantized.qoperators import expand_qoperators
from detent.frontends.onnx.reading.inference import Inference
from detent.frontends.onnx.reading.opsets import expanded, opset_of, understood
from detent.frontends.onnx.reading.partial_sizes import infer_partly, known_part
from detent.frontends.onnx.reading.tensors import TORCH_TYPES, decode, stored_type, torch_type
from detent.frontends.onnx.skeleton import reads, without_parameters
from detent.frontends.onnx.source import OnnxSource
from detent.frontends.onnx.table import CONVERTERS
from detent.graph import Runner

__all__ = ["graph_module"]

_STANDARD = ("", "ai.onnx")
_SMALL = 1024  # elements; what says a shape or axes has fewer


def graph_module(model: ModelProto) -> fx.GraphModule:
    """The network of `model`, in eval mode, with what is known of its origin in `meta["onnx"]`."""
    opset = opset_of(model)
    keeps_relus = model.producer_name == "detent"
    model, ends = _canonicalize(model)
    outputs = [value.name for value in model.graph.output]
    builder = FxBuilder(Inference(opset), ends, keeps_relus=keeps_relus)
    _inputs(model.graph, builder)
    walk = _Walk(builder, opset)
    walk.constants(model.graph)
    walk.nodes(expanded(model), outputs)
    if walk.branches:
        return graph_module(with_branches(model, walk.branches))
    results = [_result(name, builder) for name in outputs]
    builder.reads_grids("", outputs)
    builder.graph.output(results[0] if len(results) == 1 else tuple(results))
    builder.drop_unread()
    builder.graph.lint()
    made = Runner(builder.root, builder.graph, class_name=_class_name(model))
    made.meta["onnx"] = OnnxSource(
        with_relus(without_parameters(model, builder.modules, builder.parameters), builder.relus),
        builder.tensors,
        builder.nodes,
        builder.modules,
        builder.parameters,
        builder.encodings,
        _folded(model.graph, builder),
        {tensor: frozenset(readers) for tensor, readers in builder.readers.items()},
    )
    return made.eval()


_PASSES = (
    use_standard_operators,
    inline_functions,
    remove_sequences,
    expand_qoperators,
    expand_fake_quantize,
    fold_affine_steps,
)


def _canonicalize(model: ModelProto) -> tuple[ModelProto, Ends]:
    """The network in the operators that converters know, and the range of codes that a Clip left to each tensor."""
    try:
        for rewrite in _PASSES:
            model = rewrite(model)
        model, ends = fold_code_clips(model)
        return split_second_grids(model, ends), ends
    except OnnxError:
        raise
    except Exception as error:  # nodes that lack inputs or outputs
        raise OnnxError(
            "import an ONNX model",
            f"{type(error).__name__}: {error}",
            "the model is inconsistent: export it again",
        ) from error


def _folded(graph: GraphProto, builder: FxBuilder) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for node in graph.node:
        for name in node.output:
            value = builder.values.get(name)
            small = isinstance(value, Constant) and value.stored is None and value.tensor.numel() <= _SMALL
            if isinstance(value, Constant) and small and value.tensor.dtype != torch.bfloat16:
                found[name] = value.tensor.numpy().copy()
    return found


def _class_name(model: ModelProto) -> str:
    return model.graph.name if model.graph.name.isidentifier() else "GraphModule"


def _inputs(graph: GraphProto, builder: FxBuilder) -> None:
    initialized = {tensor.name for tensor in graph.initializer}
    seen: set[str] = set()
    for value in graph.input:
        if value.name in initialized:
            continue  # before IR version 4 initializers were inputs too
        asked = f"the input {value.name!r}"
        if value.name in seen or not value.name:
            raise OnnxError(asked, "it appears twice, or has no name", "export the model again")
        if not value.type.HasField("tensor_type"):
            raise OnnxError(asked, "it is a sequence, an optional or a map", "import a model of tensors")
        torch_type(value.type.tensor_type.elem_type, asked=asked)
        seen.add(value.name)
        builder.placeholder(value.name)
        builder.inference.given(value)
    if not graph.output:
        raise OnnxError(f"import the graph {graph.name!r}", "it has no outputs", "export the model again")
    twice = next((name for name, count in Counter(value.name for value in graph.output).items() if count > 1), None)
    if twice is not None:
        raise OnnxError(f"the output {twice!r}", "it appears twice", "export the model with an Identity for each")


def _result(name: str, builder: FxBuilder) -> fx.Node:
    if name not in builder.values:
        raise OnnxError(f"the output {name!r}", "nothing computes it", "export the model again")
    value = builder.values[name]
    return builder.read(value) if isinstance(value, Constant) else value


class _Walk:
    """Converts the nodes in order."""

    def __init__(self, builder: FxBuilder, opset: int):
        self._builder, self._opset = builder, opset
        self.branches: dict[str, GraphProto] = {}  # of every `If` the one it takes, by the node's name

    def constants(self, graph: GraphProto) -> None:
        if graph.sparse_initializer:
            raise OnnxError(f"import the graph {graph.name!r}", "it has sparse initializers", "store them densely")
        for tensor in graph.initializer:
            constant = self._constant(tensor)
            self._builder.budget.add(constant.tensor.numel())
            self._give(tensor.name, constant, f"the initializer {tensor.name!r}")
            if constant.stored is None:
                self._builder.inference.constant(tensor.name, constant.tensor)

    def _constant(self, tensor: onnx.TensorProto) -> Constant:
        stored = None if tensor.data_type in TORCH_TYPES else stored_type(tensor.data_type)
        return Constant(decode(tensor, tensor.name), tensor.name, stored=stored)

    def nodes(self, nodes: Iterable[NodeProto], outputs: Iterable[str]) -> None:
        wanted = list(outputs)
        needed = _needed(list(nodes), wanted)
        users: dict[str, list[NodeProto]] = {}
        for node in needed:
            for name in reads(node):
                users.setdefault(name, []).append(node)
        for name in wanted:
            users.setdefault(name, []).append(NodeProto(op_type="the output of the graph"))
        absorbed: set[int] = set()
        for node in needed:
            if id(node) in absorbed:
                continue
            call = Call(node, self._builder, self._opset, users)
            given = self._convert(call)
            absorbed.update(id(other) for other in call.absorbed)
            self._take(call, given)
            self._remember(call)
            self._builder.makers.update((name, node) for name in call.node.output)
            for converted in (node, *call.absorbed):
                self._infer(converted)
            infer_partly(call)

    def _convert(self, call: Call) -> Sequence[Value | None]:
        node = call.node
        if node.domain not in _STANDARD:
            call.refuse(f"it is of the domain {node.domain!r}", "only operators of the ONNX standard are imported")
        if node.op_type == "If":
            return self._branch(call)
        converter = CONVERTERS.get(node.op_type)
        if converter is None:
            call.refuse("this operator is not imported", "replace it, or open an issue; docs/onnx.md has the list")
        if not understood(node.op_type, self._opset):
            call.refuse(f"opset {self._opset} gives it another meaning", "convert the model to opset 9 to 23")
        try:
            given = fused_function(call) or known_part(call) or converter(call)
        except OnnxError:
            raise
        except Exception as error:  # shapes, types or attributes that contradict each other
            call.refuse(
                f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else 'no reason'}",
                "the model contradicts itself here: export it again",
            )
        return given if isinstance(given, (tuple, list)) else [given]

    def _branch(self, call: Call) -> Sequence[Value | None]:
        """The branch of an `If` whose condition is known."""
        graph = branch_of(call)
        if graph is None:
            return one_operation(call)
        outer, branches = dict(self._builder.values), dict(self.branches)
        self.constants(graph)
        self.nodes(graph.node, [value.name for value in graph.output])
        given = [self._builder.values.get(value.name) for value in graph.output]
        for output, value in zip(call.node.output, graph.output, strict=False):
            self._builder.inference.copied(output, value.name)
        self._builder.values = outer
        # Those inside of it are decided again when it is in its place.
        self.branches = {**branches, label(call.node): graph}
        return given

    def _take(self, call: Call, given: Sequence[Value | None]) -> None:
        builder = self._builder
        for name, value in zip(call.outputs, given, strict=False):
            if not name:
                continue
            if value is None:
                call.refuse(f"its output {name!r} is not computed", "export the model without it")
            self._give(name, value, f"the output of {label(call.node)!r}")
            if isinstance(value, fx.Node) and value.name not in builder.tensors:
                builder.tensors[value.name] = name
        missing = [name for name in call.outputs[len(given) :] if name]
        if missing:
            call.refuse(f"its output {missing[0]!r} is not computed", "export the model without it")

    def _remember(self, call: Call) -> None:
        """Record which ONNX nodes the new fx nodes stand for, and which of their inputs are quantized."""
        builder = self._builder
        for converted in (call.node, *call.absorbed):
            builder.reads_grids(label(converted), converted.input)
        for name in call.node.output:
            builder.passes_grid(call.node.input, name)
        types = tuple(converted.op_type for converted in (call.node, *call.absorbed))
        for node in builder.emitted:
            builder.nodes[node.name] = call.names
            node.meta["names"], node.meta["types"] = call.names, types  # what recipes and plans may call it
            if node.op == "call_module":
                builder.modules[str(node.target)] = call.names
        builder.emitted.clear()

    def _infer(self, node: NodeProto) -> None:
        builder = self._builder
        folded = {name: value for name in node.output if isinstance(value := builder.values.get(name), Constant)}
        if len(folded) < len(node.output) and node.op_type != "If":
            values = {name: builder.values.get(name) for name in node.input}
            constants = {n: v.tensor for n, v in values.items() if isinstance(v, Constant) and v.stored is None}
            builder.inference.node(node, constants)
        for name, value in folded.items():
            builder.inference.constant(name, value.tensor)

    def _give(self, name: str, value: Value, asked: str) -> None:
        if name in self._builder.values:
            raise OnnxError(asked, f"{name!r} is given twice", "export the model again")
        self._builder.values[name] = value
        if isinstance(value, Constant) and value.source is None:
            self._builder.computed.setdefault(id(value.tensor), name)


def _needed(nodes: list[NodeProto], outputs: Iterable[str]) -> list[NodeProto]:
    """The nodes that the outputs depend on, in order."""
    wanted = set(outputs)
    kept: list[NodeProto] = []
    for node in reversed(nodes):
        if wanted.intersection(node.output):
            kept.append(node)
            wanted.update(reads(node))
    return kept[::-1]

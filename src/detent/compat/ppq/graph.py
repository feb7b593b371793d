"""PPQ's graph of operations, as names and types over the GraphModule that everything else works on."""

from __future__ import annotations

import copy
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from onnx import NodeProto
from torch import fx, nn

from detent.compat.ppq.config import OperationQuantizationConfig, TensorQuantizationConfig
from detent.compat.ppq.platforms import TargetPlatform
from detent.errors import CaptureError, UnknownNameError
from detent.frontends.onnx import OnnxSource, is_imported, source_of
from detent.graph import KINDS, WEIGHTED, PreparedModel, capture, kind_of
from detent.loading import load

__all__ = [
    "BaseGraph",
    "Operation",
    "OperationMeta",
    "QuantableOperation",
    "Variable",
    "format_graph",
    "load_caffe_graph",
    "load_onnx_graph",
    "load_torch_model",
]

# What ONNX calls a kind, where that is not its name in capitals.
_TYPES = {
    "conv": "Conv",
    "conv_transpose": "ConvTranspose",
    "linear": "Gemm",
    "matmul": "MatMul",
    "maximum": "Max",
    "minimum": "Min",
    "maxpool": "MaxPool",
    "global_maxpool": "GlobalMaxPool",
    "avgpool": "AveragePool",
    "global_avgpool": "GlobalAveragePool",
    "mean": "ReduceMean",
    "sum": "ReduceSum",
    "relu6": "Clip",
    "prelu": "PRelu",
    "hardswish": "HardSwish",
    "hardsigmoid": "HardSigmoid",
    "batchnorm": "BatchNormalization",
    "layernorm": "LayerNormalization",
}
COMPUTING = WEIGHTED


@dataclass(frozen=True)
class Variable:
    """A tensor by its name in the file. `tensor` is its name in a Plan; None if no Plan ever has it."""

    name: str
    tensor: str | None
    is_parameter: bool = False


@dataclass(frozen=True)
class OperationMeta:
    """What a quantizer may know of an operation before anything ran."""

    operation_name: str
    operation_type: str
    num_of_input: int
    num_of_output: int
    values: tuple[bool, ...]
    """For each input, whether it is quantizable: data, weights and biases are, shapes and bounds are not."""


@dataclass(eq=False)
class Operation:
    """One operation. `layer` and `kind` are its names in recipes and plans."""

    name: str
    type: str
    layer: str
    kind: str | None
    inputs: tuple[Variable, ...]
    outputs: tuple[Variable, ...]
    platform: TargetPlatform = TargetPlatform.UNSPECIFIED
    config: OperationQuantizationConfig | None = field(default=None, repr=False)

    @property
    def num_of_input(self) -> int:
        return len(self.inputs)

    @property
    def num_of_output(self) -> int:
        return len(self.outputs)

    @property
    def is_computing_op(self) -> bool:
        return self.kind in COMPUTING

    def config_with_variable(self) -> list[tuple[TensorQuantizationConfig, Variable]]:
        """Each config with the variable it is for, inputs first; none for an operation that is not quantized."""
        configs = () if self.config is None else tuple(self.config)
        return list(zip(configs, (*self.inputs, *self.outputs), strict=bool(configs)))

    @property
    def meta_data(self) -> OperationMeta:
        values = tuple(variable.tensor is not None for variable in self.inputs)
        return OperationMeta(self.name, self.type, len(self.inputs), len(self.outputs), values)


class _HasConfig(type):
    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, Operation) and instance.config is not None


class QuantableOperation(Operation, metaclass=_HasConfig):
    """What `isinstance` calls an operation that has been given a config."""


class BaseGraph:
    """A network by its operations. `module` is the float model; `prepared` is there once it has been quantized.

    Batch norms are merged into the operation before them when the model is prepared, so they are no operations here,
    and what they are merged into has a bias.
    """

    def __init__(self, module: fx.GraphModule, name: str):
        self.name = name
        self.prepared: PreparedModel | None = None
        self._source = source_of(module) if is_imported(module) else None
        self.replace(module)

    def replace(self, module: fx.GraphModule) -> None:
        """The operations of another network; those that the file has keep their names."""
        self.module, source = module, self._source
        self.operations = {operation.name: operation for operation in _operations(module, source)}
        nodes = list(module.graph.nodes)
        self.inputs = [_name(node, source) for node in nodes if node.op == "placeholder"]
        self.outputs = [_name(node, source) for node in nodes[-1].all_input_nodes]

    def topological_sort(self) -> list[Operation]:
        return list(self.operations.values())

    def node_of(self, tensor: str) -> str:
        """The fx node that gives the tensor of that name."""
        for node in self.module.graph.nodes:
            if _name(node, self._source) == tensor:
                return str(node.name)
        raise UnknownNameError(f"tensor {tensor!r} of {self.name!r}", "it has no such tensor", "see graph.operations")


def load_onnx_graph(onnx_import_file: str | os.PathLike[str]) -> BaseGraph:
    """The operations of an ONNX file."""
    return BaseGraph(load(onnx_import_file), os.fspath(onnx_import_file))


def load_caffe_graph(prototxt_path: str | os.PathLike[str], caffemodel_path: str | os.PathLike[str]) -> BaseGraph:
    """The operations of a Caffe network."""
    return BaseGraph(load(prototxt_path, caffemodel_path), os.fspath(prototxt_path))


def load_torch_model(
    model: nn.Module, onnx_file_name: str = "MyModel.onnx", sample: Any = None, device: str | torch.device = "cuda"
) -> BaseGraph:
    """The operations of a torch model, which `sample` is run through on `device`. It is traced as it is: no file is
    written, and `onnx_file_name` is only what the graph is called."""
    args = () if isinstance(sample, Mapping) else tuple(sample) if isinstance(sample, (list, tuple)) else (sample,)
    named = dict(sample) if isinstance(sample, Mapping) else {}
    captured = capture(copy.deepcopy(model).to(device).eval(), args, example_kwargs=named)
    region = captured.regions.get("")
    if region is None or captured.graph_breaks:
        why = "; ".join(f"{name or 'the model'}: {reason}" for name, reason in captured.graph_breaks.items())
        raise CaptureError("a graph of operations of a torch model", why, "use detent.prepare, which keeps such parts")
    return BaseGraph(fx.GraphModule(region, next(iter(region.graphs.values()))), onnx_file_name)


def format_graph(graph: BaseGraph) -> BaseGraph:
    """The graph as it is: reading a network has brought constants and parameters into one form, and preparing it merges
    batch norms."""
    return graph


def _operations(module: fx.GraphModule, source: OnnxSource | None) -> Iterator[Operation]:
    modules = dict(module.named_modules())
    protos = {node.name or node.output[0]: node for node in source.model.graph.node} if source else {}
    for node in module.graph.nodes:
        kind = kind_of(node, modules)
        if node.op in ("placeholder", "output", "get_attr") or _is_merged(node, modules):
            continue
        known = [protos[name] for name in (source.nodes.get(node.name, ()) if source else ()) if name in protos]
        word = kind.name if kind else None
        yield Operation(
            name=known[0].name or str(node.name) if known else str(node.target if word in COMPUTING else node.name),
            type=known[0].op_type if known else _TYPES.get(word or "", _camel(word)),
            layer=str(node.target) if node.op == "call_module" else str(node.name),
            kind=word,
            inputs=tuple(_inputs(node, word, modules, known, source)),
            outputs=tuple(_outputs(node, modules, known, source)),
        )


def _camel(kind: str | None) -> str:
    return "".join(part.capitalize() for part in (kind or "unknown").split("_"))


def _name(node: fx.Node, source: OnnxSource | None) -> str:
    return source.tensors.get(node.name, node.name) if source else str(node.name)


def _is_merged(node: fx.Node, modules: dict[str, Any]) -> bool:
    """Whether a batch norm goes into the operation before it."""
    before = node.all_input_nodes[0] if node.all_input_nodes else None
    return _is(node, "batchnorm", modules) and before is not None and _takes_norm(before, modules)


def _tensor(node: fx.Node, modules: dict[str, Any]) -> str:
    """What a plan calls the value: a merged batch norm gives what the operation before it is said to give."""
    return str(node.all_input_nodes[0].name if _is_merged(node, modules) else node.name)


def _takes_norm(node: fx.Node, modules: dict[str, Any]) -> bool:
    users = list(node.users)
    weighted = any(_is(node, kind, modules) for kind in COMPUTING)
    return weighted and len(users) == 1 and _is(users[0], "batchnorm", modules)


def _is(node: fx.Node, kind: str, modules: dict[str, Any]) -> bool:
    found = kind_of(node, modules)
    return found is not None and found.name == kind


def _inputs(
    node: fx.Node, kind: str | None, modules: dict[str, Any], known: list[NodeProto], source: OnnxSource | None
) -> Iterator[Variable]:
    if kind in COMPUTING and node.op == "call_module":
        taken = node.all_input_nodes[0]
        yield Variable(_name(taken, source), _tensor(taken, modules))
        stored = source.parameters if source else {}
        has_bias = modules[str(node.target)].bias is not None or _takes_norm(node, modules)
        for part in ("weight", "bias") if has_bias else ("weight",):
            path = f"{node.target}.{part}"
            yield Variable(stored[path].initializer if path in stored else path, path, is_parameter=True)
        return
    data = {_name(one, source): one for one in node.all_input_nodes}
    names: Iterable[str] = [name for name in known[0].input if name] if len(known) == 1 else data
    count = KINDS[kind].inputs if kind else 0
    for place, name in enumerate(names):
        is_data = name in data and data[name].op != "get_attr" and (count is None or place < count)
        tensor = _tensor(data[name], modules) if is_data else None
        yield Variable(name, tensor, is_parameter=name not in data)


def _outputs(
    node: fx.Node, modules: dict[str, Any], known: list[NodeProto], source: OnnxSource | None
) -> Iterator[Variable]:
    last = next(iter(node.users)) if _takes_norm(node, modules) else node
    yield Variable(_name(last, source), node.name)
    for name in known[-1].output[1:] if known else ():
        yield Variable(name, None)

"""Exports a prepared model as a network: each fx node in turn is lowered by the lowering of its operation."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, fx, nn

from detent.errors import DeployError, DetentError
from detent.frontends.torch.builder import Builder, dtype_name
from detent.frontends.torch.grids import PlannedGrids
from detent.frontends.torch.lowerings import Lowering, lowering_of, named_arguments
from detent.frontends.torch.older_nodes import NeedsOpsetError
from detent.frontends.torch.opaque import inline
from detent.frontends.torch.outputs import write_outputs
from detent.frontends.torch.parameters import StoredParameter, activation_encoding, operation_of, stored_parameter
from detent.frontends.torch.trees import bound, tensors_in
from detent.frontends.torch.values import Ref, Traced, trace
from detent.graph import (
    DeQuantStub,
    Functional,
    Inputs,
    PreparedModel,
    QuantizedTensor,
    QuantStub,
    Region,
    module_op,
    torch_op,
)
from detent.graph.capture.shape_guards import doubled
from detent.ir import DeployedTensor, Network, Port
from detent.quantizers import Quantizer

__all__ = ["Exported", "export"]


@dataclass(frozen=True)
class Exported:
    network: Network
    tensors: tuple[DeployedTensor, ...]
    ranges: tuple[DeployedTensor, ...]
    notes: list[str]
    names: dict[str, str] = field(default_factory=dict)
    """Of nodes of the fx graph, or of tensors of the ONNX file, whose result has another name in the network."""


def export(prepared: PreparedModel, *, opset: int, dynamic_batch: bool = True, mode: str | None = None) -> Exported:
    """Lower `prepared`, calibrated and in eval mode, to a network of that opset, or a later one that it needs."""
    if prepared.untraced is not None:
        raise DeployError(
            "deploy a model whose forward could not be traced", f"no file format holds Python: {_why(prepared)}", _TO_DO
        )
    try:
        return _exported(prepared, opset, dynamic_batch, mode)
    except DeployError as refused:
        if not dynamic_batch:
            raise
        try:
            made = _exported(prepared, opset, False, mode)
        except DetentError:
            raise refused from None
        made.notes.append(f"the batch size is fixed at that of the example: {refused.asked}: {refused.found}")
        return made


def _exported(prepared: PreparedModel, opset: int, dynamic_batch: bool, mode: str | None) -> Exported:
    try:
        return _Walk(prepared, opset, dynamic_batch, mode).run()
    except NeedsOpsetError as newer:
        made = _Walk(prepared, newer.opset, dynamic_batch, mode).run()
        made.notes.append(f"model.onnx has opset {newer.opset}: {newer.node} is not what is needed in {opset}")
        return made


_TO_DO = (
    "write that line with tensor operations alone (torch.where in place of `if`), pass concrete_args if it depends on"
    " arguments, or start from a file that torch.onnx.export wrote (detent.load)"
)


class _Walk:
    """One export; `run` is the result."""

    def __init__(self, region: PreparedModel, opset: int, dynamic_batch: bool, mode: str | None):
        self.region = region
        self.runner = region.runners[mode or next(iter(region.runners))]
        self.modules = dict(region.named_modules(remove_duplicate=False))
        self.notes: list[str] = []
        self.b = Builder(opset)
        self.env: dict[fx.Node, Any] = {}
        self.constants: dict[fx.Node, Any] = {}  # what nodes give that depend on no input
        self.stored: dict[str, StoredParameter] = {}
        self.written: dict[str, list[str]] = {}  # the operations of each fx node
        self.names: dict[str, str] = {}  # the tensor that each fx node gives
        self.traced = self._trace(dynamic_batch)
        # So that `x_dequantized`, made for x, is not the name of a tensor of the model's own.
        self.b.taken.update(node.name for node in self.runner.graph.nodes if node.op not in ("get_attr", "output"))
        self.grids = PlannedGrids(region, self.runner)

    def run(self) -> Exported:
        for node in self.runner.graph.nodes:
            if node.op == "output":
                write_outputs(self.b, fx.map_arg(node.args[0], lambda n: self.env[n]))
                continue
            self.b.current = node.name
            before = len(self.b.ops)
            value = self.env[node] = self._value(node)
            self.written[node.name] = [made.name for made in self.b.ops[before:]]
            if node.name in self.grids.kept and isinstance(value, Ref) and self.region.backend.repeats_grids:
                self.env[node] = self._quantized(value, self.grids.quantizer_of(self.grids.kept[node.name]))
            if isinstance(value, Ref):
                self.names[node.name] = value.name
        network = self.b.network()
        tensors = self.grids.deployed(self.stored, self._tensor_name, self.written, network)
        ranges = self.grids.ranges(self.region, self._tensor_name)
        return Exported(network, tuple(tensors), tuple(ranges), self.notes, self._other_names())

    def _tensor_name(self, entry: QuantizedTensor) -> str:
        """The tensor name of an activation: an operation that returns part of its input, such as one element of a dict,
        has no tensor of its own."""
        return self.names.get(entry.node, entry.tensor) if entry.role == "activation" else entry.tensor

    def _other_names(self) -> dict[str, str]:
        quantizers = (n.name for n in self.runner.graph.nodes if isinstance(self.modules.get(str(n.target)), Quantizer))
        own = self.names.keys() - set(quantizers)
        return {node: tensor for node, tensor in self.names.items() if node in own and node != tensor}

    # --- what the example shows

    def _trace(self, dynamic_batch: bool) -> Traced:
        example = self.region.example
        given = bound(self.runner.graph, example.args, example.kwargs)
        first = trace(self.runner, given)
        if not dynamic_batch:
            return Traced(first, None)
        sizes = [t.shape[0] for t in tensors_in(given) if t.ndim]
        if not sizes:
            return Traced(first, None)
        try:
            second = trace(self.runner, doubled(Inputs(tuple(given), {})).args)
        except Exception as error:  # the model's own: it has the batch size built in
            self.notes.append(f"the batch size is fixed at {sizes[0]}: with {2 * sizes[0]} the model fails ({error})")
            return Traced(first, None)
        return Traced(first, second, sizes[0])

    # --- one node

    def _value(self, node: fx.Node) -> Any:
        seen = self.traced.first[node]
        if node.op == "placeholder":
            return self._input(node.name, seen, self.traced.second and self.traced.second[node])
        if node.op == "get_attr":
            return self._attribute(node)
        if not _has_tensor(seen) and not self.traced.is_free(node) and not _is_record(node):
            self.constants[node] = seen
            return seen  # numbers, shapes, types: the same for every input
        if node.op != "call_module" and all(source in self.constants for source in node.all_input_nodes):
            return self._computed(node)
        if any(tensor.is_complex() for tensor in tensors_in(seen)):
            raise DeployError(
                f"write {node.name!r}",
                "it gives complex numbers, which Detent does not write",
                "compute with real and imaginary parts: a rotary embedding is x * cos - y * sin, x * sin + y * cos",
            )
        args = fx.map_arg(node.args, lambda n: self.env[n])
        kwargs = fx.map_arg(node.kwargs, lambda n: self.env[n])
        self.b.result = self._expected(node)
        if _is_record(node):
            return node.target(*args, **kwargs)  # type: ignore[operator]
        if node.op == "call_module":
            return self._module(node, args, kwargs)
        lowering = lowering_of(torch_op(node.target))
        if lowering is None:
            return inline(self.b, self._callable(node), args, kwargs, self.traced, node)
        return self._emit(lowering, args, kwargs)

    def _emit(self, lowering: Lowering, args: Any, kwargs: Any) -> Any:
        try:
            return lowering(self.b, *args, **kwargs)
        except (DetentError, NeedsOpsetError):
            raise
        except Exception as error:  # arguments that the lowering was not written for
            found = f"it is called in a way that is not known: {type(error).__name__}: {error}"
            raise DeployError(f"write {self.b.current!r}", found, "use plain arguments") from error

    def _module(self, node: fx.Node, args: Any, kwargs: Any) -> Any:
        path = str(node.target)
        module = self.modules[path]
        if isinstance(module, Quantizer):
            return self._quantized(args[0], module)
        if isinstance(module, (QuantStub, DeQuantStub)) or getattr(module, "kind", "") == "dropout":
            return args[0]
        if isinstance(module, Functional):
            lowering = lowering_of(torch_op(module.target))
            if lowering is not None:
                return self._emit(lowering, args, kwargs)
        op = module_op(operation_of(module))
        lowering = lowering_of(op)
        if lowering is None and any(isinstance(part, Region) for part in module.modules()):
            raise DeployError(f"write {path!r}", f"no file format holds Python: {_why(self.region, path)}", _TO_DO)
        if op is None or lowering is None:
            return inline(self.b, module, args, kwargs, self.traced, node)
        parameters = {name: self._part(path, module, name) for name in op.parameters}
        named = named_arguments(op, operation_of(module), args[1:])
        return self._emit(lowering, args[:1], {**parameters, **named, **kwargs})

    def _part(self, path: str, module: nn.Module, which: str) -> Ref | None:
        name = f"{path}.{which}"
        if name not in self.stored:
            found = stored_parameter(module, which, int4=self.region.backend.int4_weights)
            if found is None:
                return None
            self.stored[name] = found
            if found.quantizer is not None and found.codes is None:
                scheme = found.quantizer.scheme
                note = f"{name}: model.onnx has no {scheme}; its values are float32 there"
                if scheme.has_offset:  # of every layer of a language model
                    note = f"model.onnx has no {scheme}: such weights are float32 there"
                self.notes.extend([] if note in self.notes else [note])
        kept = self.stored[name]
        shape, dtype = tuple(kept.values.shape), kept.values.dtype
        if kept.codes is None or kept.encoding is None:
            return Ref(self.b.constant(kept.values, name), shape, dtype)
        return self.b.codes(kept.codes, kept.encoding, name)

    def _quantized(self, value: Ref, quantizer: Quantizer) -> Ref:
        if quantizer.scheme.grid.onnx_dtype() is None:
            self.notes.append(f"{value.name}: model.onnx has no {quantizer.scheme}; it is float there")
            return value
        if quantizer.scheme.rounding.value != "half_even":
            note = f"QuantizeLinear rounds half to even; this target rounds {quantizer.scheme.rounding.value}"
            if note not in self.notes:
                self.notes.append(note)
        encoding = activation_encoding(quantizer)
        if value.encoding == encoding:
            return value  # an operation between them has vanished
        return self.b.quantized(value, encoding)

    def _computed(self, node: fx.Node) -> Any:
        """Values that do not depend on an input are computed now and stored as constants."""
        args = fx.map_arg(node.args, lambda n: self.constants[n])
        kwargs = fx.map_arg(node.kwargs, lambda n: self.constants[n])
        with torch.no_grad():
            value = self.constants[node] = self._callable(node)(*args, **kwargs)
        if isinstance(value, Tensor):
            return Ref(self.b.constant(value, node.name), tuple(value.shape), value.dtype)
        return tuple(
            Ref(self.b.constant(part, f"{node.name}.{i}"), tuple(part.shape), part.dtype)
            for i, part in enumerate(value)
        )

    def _attribute(self, node: fx.Node) -> Any:
        target = str(node.target)
        owner, _, which = target.rpartition(".")
        holder: Any = self.region.get_submodule(owner) if owner else self.region
        value = self.constants[node] = getattr(holder, which)
        if not isinstance(value, Tensor):
            return value
        # The weight of a layer has its name there, where it may lie on another grid.
        name = target if module_op(operation_of(holder)) is None else node.name
        return Ref(self.b.constant(value, name), tuple(value.shape), value.dtype)

    def _callable(self, node: fx.Node) -> Any:
        if node.op == "call_method":
            name = str(node.target)
            return lambda x, *args, **kwargs: getattr(x, name)(*args, **kwargs)
        return node.target

    def _expected(self, node: fx.Node) -> Any:
        """The shape and type of the output of a node, as the example showed it."""
        first: Any = self.traced.first[node]
        second: Any = self.traced.second and self.traced.second[node]
        if isinstance(first, Tensor):
            return Ref(node.name, self.traced.sizes(first, second), first.dtype)
        if isinstance(first, (list, tuple)) and all(isinstance(part, Tensor) for part in first):
            others = second if second is not None else [None] * len(first)
            return tuple(
                Ref(f"{node.name}.{i}", self.traced.sizes(part, other), part.dtype)
                for i, (part, other) in enumerate(zip(first, others, strict=True))
            )
        return None

    # --- what goes in

    def _input(self, name: str, first: Any, second: Any) -> Any:
        if isinstance(first, Tensor):
            ref = Ref(name, self.traced.sizes(first, second), first.dtype)
            self.b.fresh(name)
            self.b.inputs[name] = Port(dtype_name(ref.dtype), ref.shape)
            return ref
        if isinstance(first, Mapping):
            return {key: self._input(f"{name}.{key}", value, second and second[key]) for key, value in first.items()}
        if dataclasses.is_dataclass(first):
            fields = {f.name: getattr(first, f.name) for f in dataclasses.fields(first)}
            others = {key: second and getattr(second, key) for key in fields}
            return SimpleNamespace(**{k: self._input(f"{name}.{k}", v, others[k]) for k, v in fields.items()})
        if isinstance(first, (list, tuple)):
            return tuple(self._input(f"{name}.{i}", v, second and second[i]) for i, v in enumerate(first))
        return first


def _why(prepared: PreparedModel, path: str = "") -> str:
    """Why a module is a graph break, with the line of its code, as the plan has it."""
    break_ = f"{path or 'the model'} stays Python"
    return next((note for note in prepared.plan.notes if note.startswith(break_)), break_)


def _is_record(node: fx.Node) -> bool:
    """Whether it is a dataclass or named tuple returned by the model."""
    return isinstance(node.target, type) and (dataclasses.is_dataclass(node.target) or issubclass(node.target, tuple))


def _has_tensor(value: Any) -> bool:
    return any(True for _ in tensors_in(value))

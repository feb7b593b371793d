"""The fx graph while it is built: values by ONNX name, modules and parameters by path, constants folded."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from onnx import NodeProto
from torch import Tensor, fx, nn

from detent.frontends.onnx.names import Names, identifier
from detent.frontends.onnx.onnx_function import OnnxFunction
from detent.frontends.onnx.reading.folding import Budget
from detent.frontends.onnx.reading.inference import Inference
from detent.frontends.onnx.source import OnnxEncoding, OnnxParameter

__all__ = ["Constant", "FxBuilder", "Value"]


@dataclass(frozen=True, eq=False)
class Constant:
    """A tensor known at import. `source` is the initializer whose values it holds, swapped if `transposed`;
    `stored` is the ONNX type of codes that torch keeps in a wider one; `learned` says what values do not show."""

    tensor: Tensor
    source: str | None = None
    transposed: bool = False
    stored: str | None = None
    learned: bool | None = None

    @property
    def trainable(self) -> bool:
        """Whether it is a parameter to train: not a single (or repeated) number, which is part of a formula, and not a
        mask of infinities."""
        values = self.tensor
        if self.learned is not None:
            return self.learned
        learned = self.source is not None and values.is_floating_point() and values.numel() > 1
        return learned and bool(values.isfinite().all()) and bool((values != values.reshape(-1)[0]).any())


Value: TypeAlias = "Constant | fx.Node"


class FxBuilder:
    def __init__(
        self, inference: Inference, ends: Mapping[str, tuple[int, int]] | None = None, *, keeps_relus: bool = False
    ):
        self.graph, self.root = fx.Graph(), nn.Module()
        self.inference, self.budget = inference, Budget()
        self.values: dict[str, Value] = {}
        self.tensors: dict[str, str] = {}
        self.nodes: dict[str, tuple[str, ...]] = {}
        self.modules: dict[str, tuple[str, ...]] = {}
        self.parameters: dict[str, OnnxParameter] = {}
        self.encodings: dict[str, OnnxEncoding] = {}
        self.makers: dict[str, NodeProto] = {}  # the node of the file that gives a value
        self.computed: dict[int, str] = {}  # names of computed constants, by the id of the tensor
        self.sizes: dict[str, tuple[int | None, ...]] = {}  # partly known lists of sizes
        self.emitted: list[fx.Node] = []  # since the importer last looked
        self.ends = ends or {}  # tensor of codes -> the least and the greatest, where not all of the type are used
        self.clipped: dict[str, str] = {}  # output of a Clip that is part of a grid -> its input
        self.clip_ends: dict[str, tuple[float, float]] = {}  # by output, the bounds it clips to
        self.keeps_relus = keeps_relus  # whether who wrote the file leaves the ReLUs that a grid does the work of
        self.relus: dict[str, str] = {}  # codes of a grid that did the work of a ReLU -> what that gives
        self.dissolved: dict[str, str] = {}  # codes that stand for the value they were made from -> its tensor
        self.gridded: dict[str, str] = {}  # output of a DequantizeLinear -> the tensor whose encoding it has
        self.readers: dict[str, set[str]] = {}  # tensor with an encoding -> the nodes that take it from its grid
        self._names = Names()
        self._reads: dict[tuple[object, bool], fx.Node] = {}
        self._shared: dict[tuple[str, bool], nn.Parameter] = {}

    def placeholder(self, name: str) -> None:
        path = self._names.unique(name)
        node = self.graph.create_node("placeholder", path, name=path)
        self.values[name] = node
        self.tensors[node.name] = name

    # ---- operations ----

    def function(self, name: str, function: Callable[..., Any], args: Any, kwargs: Mapping[str, Any]) -> Any:
        """A node that calls a torch function; its result if all arguments are constants."""
        folded = self._fold(function, args, kwargs)
        if folded is not None:
            return folded
        args, kwargs = self._ready(args), {key: self._ready(value) for key, value in kwargs.items()}
        return self._emit("call_function", function, tuple(args), kwargs, name)

    def op(self, name: str, path: str, op: OnnxFunction, inputs: tuple[Value | None, ...]) -> Any:
        """A node that calls a function of this package; its result if all inputs are constants."""
        folded = self._fold(op, inputs, {})
        return folded if folded is not None else self.module(name, path, op, inputs)

    def module(
        self, name: str, path: str, module: nn.Module, inputs: tuple[Value | None, ...], **held: Constant | None
    ) -> fx.Node:
        """A node that calls a module; `held` names the constants of its parameters and buffers."""
        path = self._names.unique(path)
        for part, constant in held.items():
            if constant is not None and constant.source is not None:
                self.parameters[f"{path}.{part}"] = OnnxParameter(constant.source, constant.transposed)
        self.root.add_module(path, module)
        return self._emit("call_module", path, tuple(self._ready(inputs)), {}, name)

    def _emit(self, op: str, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any], name: str) -> fx.Node:
        node = self.graph.create_node(op, target, args, kwargs, name=identifier(name))
        self.emitted.append(node)
        return node

    def erase(self, node: fx.Node) -> None:
        """Remove nodes that nothing reads any more."""
        self.graph.erase_node(node)
        if node.op == "call_module":
            delattr(self.root, str(node.target))
            self.modules.pop(str(node.target), None)
        for known in (self.tensors, self.nodes):
            known.pop(node.name, None)

    # ---- grids ----

    def reads_grids(self, label: str, inputs: Iterable[str]) -> None:
        """A node takes these tensors: those among them that come from a DequantizeLinear, it takes from a grid."""
        for name in inputs:
            if name in self.gridded:
                self.readers.setdefault(self.gridded[name], set()).add(label)

    def passes_grid(self, inputs: Iterable[str], output: str) -> None:
        """If a node returns its input, readers of its output read the grid of its input."""
        given = self.values.get(output)
        for name in inputs:
            if name in self.gridded and isinstance(given, fx.Node) and self.values.get(name) is given:
                self.gridded.setdefault(output, self.gridded[name])

    def drop_unread(self) -> None:
        """Remove nodes that nothing reads, such as shapes of which only known sizes were used."""
        for node in reversed(list(self.graph.nodes)):
            if node.op in ("call_function", "call_module", "get_attr") and not node.users:
                self.erase(node)

    # ---- constants ----

    def parameter(self, constant: Constant) -> nn.Parameter:
        """The parameter with these values: one per initializer, even if several operations share it."""
        if constant.source is None:
            return nn.Parameter(constant.tensor.clone())
        key = (constant.source, constant.transposed)
        if key not in self._shared:
            self._shared[key] = nn.Parameter(constant.tensor)
        return self._shared[key]

    def read(self, constant: Constant) -> fx.Node:
        """A node that passes the constant to an operation."""
        key = (constant.source if constant.source is not None else id(constant.tensor), constant.transposed)
        if key not in self._reads:
            path = self._names.unique(constant.source or "constant")
            if constant.trainable:
                self.root.register_parameter(path, self.parameter(constant))
            else:
                self.root.register_buffer(path, constant.tensor)
            if constant.source is not None:
                self.parameters[path] = OnnxParameter(constant.source, constant.transposed)
            self._reads[key] = self.graph.create_node("get_attr", path, name=path)
            name = constant.source or self.computed.get(id(constant.tensor))
            if name is not None and not constant.transposed:
                self.tensors[self._reads[key].name] = name
        return self._reads[key]

    def _ready(self, value: Any) -> Any:
        """Arguments of a node: constants are read, tuples and lists are gone through."""
        if isinstance(value, Constant):
            return self.read(value)
        if isinstance(value, (list, tuple)) and not isinstance(value, torch.Size):
            return type(value)(self._ready(part) for part in value)
        return value

    def _fold(self, function: Callable[..., Any], args: Any, kwargs: Mapping[str, Any]) -> Any:
        """The result of a function of constants; None if an argument is not constant, or the result is too large to
        keep."""
        parts = list(_leaves((args, tuple(kwargs.values()))))
        if any(isinstance(part, fx.Node) for part in parts):
            return None
        constants = [part.tensor for part in parts if isinstance(part, Constant)]
        result = self.budget.compute(
            function, constants, lambda: function(*_plain(args), **{key: _plain(v) for key, v in kwargs.items()})
        )
        if isinstance(result, (list, tuple)):
            return type(result)(Constant(part) if isinstance(part, Tensor) else part for part in result)
        return Constant(result) if isinstance(result, Tensor) else result


def _leaves(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        for part in value:
            yield from _leaves(part)
    else:
        yield value


def _plain(value: Any) -> Any:
    if isinstance(value, Constant):
        return value.tensor
    if isinstance(value, (list, tuple)) and not isinstance(value, torch.Size):
        return type(value)(_plain(part) for part in value)
    return value

"""Formats that hold the qparams of tensors, for tools that read them beside the float network.

Names are those of `float.onnx`, the network without Q and DQ.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import onnx
from onnx import numpy_helper

from detent.ir import DeployedTensor, Trait, ops_with
from detent.ir.metadata import read_stored_as
from detent.rewrites import float_model
from detent.targets.base.deployment import Deployment
from detent.targets.base.format import Format, TensorFacts, Written
from detent.targets.base.limits import by_name, float_readers

__all__ = ["FLOAT_MODEL", "KEEPS_VALUES", "FloatNetwork", "ParameterFormat", "initializer_facts"]

FLOAT_MODEL = "float.onnx"

KEEPS_VALUES = ops_with(Trait.RESHAPES) | {"Transpose"}
"""Types of nodes whose output holds the values of the input, moved."""


@dataclass(frozen=True, eq=False)
class FloatNetwork:
    """`activations` and `parameters` are the tensors that are on a grid; `notes` say what that loses."""

    deployment: Deployment
    model: onnx.ModelProto
    activations: Mapping[str, DeployedTensor]
    parameters: Mapping[str, DeployedTensor]
    notes: tuple[str, ...] = ()

    @classmethod
    def of(cls, deployment: Deployment, format_name: str) -> FloatNetwork:
        parameters = {tensor.tensor: tensor for tensor in deployment.parameters}
        model = float_model(deployment.model)
        _name_stored(model)
        own = deployment.graph.unquantized_outputs(deployment.names)
        _name_outputs(model.graph, own)
        activations = {
            own.get(name, name): replace(tensor, tensor=own.get(name, name))
            for name, tensor in by_name(deployment, format_name).items()
        }
        return cls(deployment, model, activations, parameters, float_readers(deployment, format_name))

    @property
    def nodes(self) -> list[onnx.NodeProto]:
        return [node for node in self.model.graph.node if node.op_type != "Constant"]

    @property
    def file(self) -> dict[str, bytes]:
        return {FLOAT_MODEL: self.model.SerializeToString(deterministic=True)}

    @cached_property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Of parameters."""
        return {tensor.name: tuple(tensor.dims) for tensor in self.model.graph.initializer}

    @cached_property
    def _producers(self) -> dict[str, onnx.NodeProto]:
        return {name: node for node in self.model.graph.node for name in node.output}

    def producer(self, tensor: str) -> onnx.NodeProto | None:
        return self._producers.get(tensor)

    def consumers(self, tensor: str) -> list[onnx.NodeProto]:
        return [node for node in self.nodes if tensor in node.input]

    def reads(self, node: onnx.NodeProto) -> dict[int, DeployedTensor]:
        """The inputs that the node reads as integers, by position."""
        found: dict[int, DeployedTensor] = {}
        for position, name in enumerate(node.input):
            tensor = self.activations.get(name) or self.parameters.get(name)
            if tensor is not None and (not tensor.users or node.name in tensor.users or tensor.role != "activation"):
                found[position] = tensor
        return found

    def moved_backwards(self) -> dict[str, DeployedTensor]:
        """The activations, and what goes into a node that only moves values whose output is one of them.

        Tools that want a range for every tensor find it there too. The order is that of `activations`, then of nodes
        from the last to the first.
        """
        found = dict(self.activations)
        for node in reversed(self.nodes):
            if node.op_type in KEEPS_VALUES and node.output[0] in found and node.input[0] not in self.shapes:
                found.setdefault(node.input[0], found[node.output[0]])
        return found

    def clipping_of(self, node: onnx.NodeProto) -> onnx.NodeProto | None:
        """The ReLU or ReLU6 that alone reads what `node` gives."""
        after = self.consumers(node.output[0])
        if len(after) != 1 or any(output.name == node.output[0] for output in self.model.graph.output):
            return None
        if after[0].op_type == "Relu" or (after[0].op_type == "Clip" and self._bounds(after[0]) == (0.0, 6.0)):
            return after[0]
        return None

    def _bounds(self, clip: onnx.NodeProto) -> tuple[Any, ...]:
        constants = {tensor.name: tensor for tensor in self.model.graph.initializer}
        for node in self.model.graph.node:
            if node.op_type == "Constant":
                constants.update((node.output[0], a.t) for a in node.attribute if a.name == "value")
        named = [constants.get(name) for name in clip.input[1:]]
        return tuple(numpy_helper.to_array(tensor).item() for tensor in named if tensor is not None)


class ParameterFormat(Format):
    """Qparams of tensors in one file or more, beside `float.onnx`."""

    @abstractmethod
    def write_parameters(self, network: FloatNetwork) -> Written:
        """The files without `float.onnx`, and the notes on them."""

    @abstractmethod
    def parameter_facts(self, content: bytes) -> Iterator[TensorFacts]:
        """What one of them says."""

    def write(self, deployment: Deployment) -> Written:
        network = FloatNetwork.of(deployment, self.name)
        written = self.write_parameters(network)
        return Written({**written.files, **network.file}, (*network.notes, *written.notes))

    def facts(self, file: str, files: Mapping[str, bytes]) -> Iterator[TensorFacts]:
        return initializer_facts(files[file]) if file == FLOAT_MODEL else self.parameter_facts(files[file])


def initializer_facts(content: bytes) -> Iterator[TensorFacts]:
    """The real numbers of the parameters of an ONNX model."""
    for held in onnx.load_model_from_string(content).graph.initializer:
        array = numpy_helper.to_array(held)
        if array.ndim and array.dtype.kind == "f":
            yield TensorFacts(held.name, {"numbers": array})


def _name_stored(model: onnx.ModelProto) -> None:
    """A constant has the name of the parameter that it stores, unless another constant has that name already."""
    stored = {tensor.name for tensor in model.graph.initializer}
    told = {name: one.parameter for name, one in read_stored_as(model).items() if name in stored}
    names = {name: own for name, own in told.items() if own not in stored}
    for tensor in model.graph.initializer:
        tensor.name = names.get(tensor.name, tensor.name)
    for node in model.graph.node:
        node.input[:] = [names.get(name, name) for name in node.input]
    del model.metadata_props[:]


def _name_outputs(graph: onnx.GraphProto, names: Mapping[str, str]) -> None:
    """What stands before the quantization of an output has the output's own name again."""
    for node in [node for node in graph.node if node.op_type == "Identity" and node.input[0] in names]:
        if node.output[0] == names[node.input[0]]:
            graph.node.remove(node)
    for node in graph.node:
        node.input[:] = [names.get(name, name) for name in node.input]
        node.output[:] = [names.get(name, name) for name in node.output]

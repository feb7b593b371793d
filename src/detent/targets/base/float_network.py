"""Formats for tools that read the qparams of tensors from a separate file, next to the float network.

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

from detent.ir import DeployedTensor, Network, Op, Trait, ops_with, write_qdq
from detent.rewrites import float_network
from detent.targets.base.deployment import Deployment
from detent.targets.base.format import Format, TensorFacts, Written
from detent.targets.base.limits import by_name, float_readers

__all__ = ["FLOAT_MODEL", "KEEPS_VALUES", "FloatNetwork", "ParameterFormat", "initializer_facts"]

FLOAT_MODEL = "float.onnx"

KEEPS_VALUES = ops_with(Trait.RESHAPES) | {"Transpose"}
"""Types of operations whose output holds the values of the input, moved."""


@dataclass(frozen=True, eq=False)
class FloatNetwork:
    """`activations` and `parameters` are the tensors that are on a grid; `notes` say what that loses."""

    deployment: Deployment
    network: Network
    activations: Mapping[str, DeployedTensor]
    parameters: Mapping[str, DeployedTensor]
    notes: tuple[str, ...] = ()

    @classmethod
    def of(cls, deployment: Deployment, format_name: str) -> FloatNetwork:
        parameters = {tensor.tensor: tensor for tensor in deployment.parameters}
        # What stands before the quantization of an output has the output's own name again.
        own = deployment.graph.unquantized_outputs(deployment.names)
        network = _with_named_parameters(float_network(deployment.graph)).renamed(own).with_named_outputs()
        activations = {
            own.get(name, name): replace(tensor, tensor=own.get(name, name))
            for name, tensor in by_name(deployment, format_name).items()
        }
        return cls(deployment, network, activations, parameters, float_readers(deployment, format_name))

    @property
    def ops(self) -> tuple[Op, ...]:
        return self.network.ops

    @cached_property
    def content(self) -> bytes:
        """The bytes of `float.onnx`."""
        content: bytes = write_qdq(self.network).SerializeToString(deterministic=True)
        return content

    def producer(self, tensor: str) -> Op | None:
        return self.network.producer(tensor)

    def consumers(self, tensor: str) -> list[Op]:
        return [op for op in self.ops if tensor in op.input_names]

    def reads(self, op: Op) -> dict[int, DeployedTensor]:
        """The positions of the inputs that the operation reads as integers."""
        found: dict[int, DeployedTensor] = {}
        for position, name in enumerate(op.input_names):
            tensor = self.activations.get(name) or self.parameters.get(name)
            if tensor is not None and (not tensor.users or op.name in tensor.users or tensor.role != "activation"):
                found[position] = tensor
        return found

    def moved_backwards(self) -> dict[str, DeployedTensor]:
        """The activations, and the inputs of data movement whose output is one of them, because tools that want a range
        for every tensor look there too. The order is that of `activations`, then operations from last to first."""
        found = dict(self.activations)
        for op in reversed(self.ops):
            if op.type in KEEPS_VALUES and op.outputs[0] in found and op.input_names[0] not in self.network.constants:
                found.setdefault(op.input_names[0], found[op.outputs[0]])
        return found

    def clipping_of(self, op: Op) -> Op | None:
        """The ReLU or ReLU6 that is the only reader of the output of `op`."""
        after = self.consumers(op.outputs[0])
        if len(after) != 1 or any(output.name == op.outputs[0] for output in self.network.outputs):
            return None
        if after[0].type == "Relu" or (after[0].type == "Clip" and self._bounds(after[0]) == (0.0, 6.0)):
            return after[0]
        return None

    def _bounds(self, clip: Op) -> tuple[Any, ...]:
        constants = self.network.constants
        return tuple(constants[name].item() for name in clip.input_names[1:] if name in constants)


class ParameterFormat(Format):
    """Qparams of tensors in one file or more, beside `float.onnx`."""

    @abstractmethod
    def write_parameters(self, network: FloatNetwork) -> Written:
        """The files without `float.onnx`, and the notes on them."""

    @abstractmethod
    def parameter_facts(self, content: bytes) -> Iterator[TensorFacts]:
        """The facts in one of them."""

    def write(self, deployment: Deployment) -> Written:
        network = FloatNetwork.of(deployment, self.name)
        written = self.write_parameters(network)
        return Written({**written.files, FLOAT_MODEL: network.content}, (*network.notes, *written.notes))

    def facts(self, file: str, files: Mapping[str, bytes]) -> Iterator[TensorFacts]:
        return initializer_facts(files[file]) if file == FLOAT_MODEL else self.parameter_facts(files[file])


def initializer_facts(content: bytes) -> Iterator[TensorFacts]:
    """The real numbers of the parameters of an ONNX model."""
    for held in onnx.load_model_from_string(content).graph.initializer:
        array = numpy_helper.to_array(held)
        if array.ndim and array.dtype.kind == "f":
            yield TensorFacts(held.name, {"numbers": array})


def _with_named_parameters(network: Network) -> Network:
    """Renames a constant to the parameter that it stores, unless another constant already has that name."""
    told = {name: one.parameter for name, one in network.stored_as.items() if name in network.constants}
    names = {name: own for name, own in told.items() if own not in network.constants}
    return replace(network.renamed(names), stored_as={})

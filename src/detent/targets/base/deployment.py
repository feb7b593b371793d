"""The input of file formats: the deployed network and all its quantized tensors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import onnx
from torch import Tensor

from detent.ir import DeployedTensor, Network, read_qdq
from detent.planning import Backend

__all__ = ["DeployedTensor", "Deployment"]


@dataclass(frozen=True, eq=False, kw_only=True)
class Deployment:
    """The network as QDQ ONNX, for a backend. `tensors` is in the order of the Plan; `ranges` are of float tensors, as
    they would be on a grid, which only retargeting looks at; `names` are of nodes of the torch model whose result is
    called otherwise here; `saturating` are the layers whose pairs of products leave 16 bits; `config` is that of a
    model of transformers (config.json), `config_prefix` the name that this has inside of the deployed one,
    `companions` the files beside config.json that say how text becomes token ids and how words are chosen, and
    `checkpoint` its parameters."""

    name: str
    backend: Backend
    model: onnx.ModelProto
    tensors: tuple[DeployedTensor, ...]
    ranges: tuple[DeployedTensor, ...] = ()
    notes: Sequence[str] = ()
    names: Mapping[str, str] = field(default_factory=dict)
    saturating: tuple[str, ...] = ()
    config: Mapping[str, Any] | None = None
    config_prefix: str = ""
    companions: Mapping[str, bytes] = field(default_factory=dict)
    checkpoint: Mapping[str, Tensor] = field(default_factory=dict)

    @cached_property
    def graph(self) -> Network:
        """The network that `model` holds, with Q and DQ folded into operands."""
        return read_qdq(self.model)

    @property
    def activations(self) -> tuple[DeployedTensor, ...]:
        return tuple(tensor for tensor in self.tensors if tensor.role == "activation")

    @property
    def parameters(self) -> tuple[DeployedTensor, ...]:
        """Weights and biases."""
        return tuple(tensor for tensor in self.tensors if tensor.role != "activation")

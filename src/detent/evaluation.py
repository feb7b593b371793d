"""Evaluates a prepared model with the target's arithmetic, so that the reported accuracy is the deployed accuracy."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Mapping
from typing import Any

import numpy.typing as npt
import torch
from torch import fx, nn

from detent.deployment import deployment_of
from detent.errors import TensorError
from detent.frontends.torch.trees import bound, tensors_in
from detent.graph import PreparedModel, eval_mode
from detent.graph.capture.running import map_tensors
from detent.targets.arithmetics import ARITHMETICS
from detent.targets.base import Engine
from detent.twin import Twin

__all__ = ["BitExact", "OnEngine", "bit_exact"]

Arrays = Mapping[str, npt.NDArray[Any]]


class _Deployed(nn.Module):
    """A module with the inputs and outputs of the prepared model, computed elsewhere from arrays by name."""

    def __init__(self, prepared: PreparedModel, inputs: Iterable[str]):
        super().__init__()
        self._names = tuple(inputs)
        self._graph: fx.Graph = next(iter(prepared.graphs.values()))
        self._places = [node for node in self._graph.nodes if node.op == "placeholder"]
        with eval_mode(prepared), torch.no_grad():
            self._shape = prepared(*prepared.example.args, **prepared.example.kwargs)

    @abstractmethod
    def _compute(self, inputs: Arrays) -> Arrays: ...

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The outputs, structured as the prepared model's are."""
        tensors = list(tensors_in(bound(self._graph, args, kwargs)))
        if len(tensors) != len(self._names) or len(args) + len(kwargs) > len(self._places):
            raise TensorError(
                f"run it on {sum(1 for _ in tensors_in((args, kwargs)))} tensors",
                f"the network takes {', '.join(self._names)}",
                "give it what the prepared model takes",
            )
        given = {name: tensor.detach().cpu().numpy() for name, tensor in zip(self._names, tensors, strict=True)}
        results = iter(self._compute(given).values())
        return map_tensors(self._shape, lambda _: torch.from_numpy(next(results)))


class BitExact(_Deployed):
    """Computes the outputs of the prepared model in the integers of its target.

    It is a snapshot: make another after training further. There are no gradients.
    """

    def __init__(self, prepared: PreparedModel, arithmetic: str | None = None):
        deployment = deployment_of(prepared)
        super().__init__(prepared, deployment.graph.inputs)
        self.notes = tuple(deployment.notes)
        self._twin = Twin(deployment.graph, ARITHMETICS[arithmetic or prepared.backend.arithmetic]())

    def _compute(self, inputs: Arrays) -> Arrays:
        return self._twin.run(inputs)

    def extra_repr(self) -> str:
        return f"arithmetic={self._twin.arithmetic.name!r}, {self._twin.arithmetic.claim}"


class OnEngine(_Deployed):
    """Computes the outputs of the prepared model by running the deployed one on the engine."""

    def __init__(self, prepared: PreparedModel, engine: Engine, inputs: Iterable[str]):
        super().__init__(prepared, inputs)
        self._engine = engine

    def _compute(self, inputs: Arrays) -> Arrays:
        return self._engine.run(inputs)

    def extra_repr(self) -> str:
        return f"engine={self._engine.name!r}"


def bit_exact(prepared: PreparedModel, arithmetic: str | None = None) -> BitExact:
    """`prepared` as a module that computes exactly what the twin does, under the arithmetic of its backend or the one
    named."""
    return BitExact(prepared, arithmetic)

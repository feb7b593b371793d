"""A prepared model that computes as its target does: reported accuracy is deployed accuracy."""

from __future__ import annotations

from typing import Any

import torch
from torch import fx, nn

from detent.deployment import deployment_of
from detent.errors import TensorError
from detent.frontends.torch.trees import bound, tensors_in
from detent.graph import PreparedModel, eval_mode
from detent.graph.running import map_tensors
from detent.targets.arithmetics import ARITHMETICS
from detent.twin import Twin

__all__ = ["BitExact", "bit_exact"]


class BitExact(nn.Module):
    """Takes what the prepared model takes and gives what it gives, in the integers of its target.

    It is a snapshot: make another after training further. There are no gradients.
    """

    def __init__(self, prepared: PreparedModel, arithmetic: str | None = None):
        super().__init__()
        name = arithmetic or prepared.backend.arithmetic
        deployment = deployment_of(prepared)
        self.notes = tuple(deployment.notes)
        self._twin = Twin(deployment.graph, ARITHMETICS[name]())
        self._names = tuple(deployment.graph.inputs)
        self._graph: fx.Graph = next(iter(prepared.graphs.values()))
        self._places = [node for node in self._graph.nodes if node.op == "placeholder"]
        with eval_mode(prepared), torch.no_grad():
            self._shape = prepared(*prepared.example.args, **prepared.example.kwargs)

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
        results = iter(self._twin.run(given).values())
        return map_tensors(self._shape, lambda _: torch.from_numpy(next(results)))

    def extra_repr(self) -> str:
        return f"arithmetic={self._twin.arithmetic.name!r}, {self._twin.arithmetic.claim}"


def bit_exact(prepared: PreparedModel, arithmetic: str | None = None) -> BitExact:
    """`prepared` under the arithmetic of its backend, or under another that is named."""
    return BitExact(prepared, arithmetic)

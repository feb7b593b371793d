"""PPQ's executor: runs the graph, in float before `quantize` and quantized after it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, fx

from detent.algorithms.common.recording import interpreting
from detent.compat.ppq.graph import BaseGraph
from detent.errors import EngineError
from detent.graph import flat

__all__ = ["TorchExecutor"]


class TorchExecutor:
    """Moves the network to `device` and runs it there."""

    def __init__(self, graph: BaseGraph, device: str | torch.device = "cuda"):
        try:
            graph.module.to(device)
        except (RuntimeError, AssertionError) as error:
            raise EngineError(f"run on {device!r}", str(error).splitlines()[0], "choose another device") from None
        self.graph, self.device = graph, torch.device(device)

    def on_device(self, value: Any) -> Any:
        """Tensors, and lists and dicts of them, on the executor's device."""
        if isinstance(value, Tensor):
            return value.to(self.device)
        if isinstance(value, Mapping):
            return {key: self.on_device(one) for key, one in value.items()}
        return [self.on_device(one) for one in value] if isinstance(value, (list, tuple)) else value

    def forward(self, inputs: Any, output_names: Sequence[str] | None = None) -> list[Tensor]:
        """The outputs of the network, or the tensors of these names, without gradients."""
        with torch.no_grad():
            return self.forward_with_gradient(inputs, output_names)

    def forward_with_gradient(self, inputs: Any, output_names: Sequence[str] | None = None) -> list[Tensor]:
        """The same with gradients."""
        given = self.on_device(inputs)
        if output_names is None:
            return list(flat(self._run(given)))
        nodes = [self.graph.node_of(name) for name in output_names]
        values: dict[str, Tensor] = {}
        if self.graph.prepared is None:
            watched = _Watched(self.graph.module, values)
            args = given if isinstance(given, list) else list(given.values()) if isinstance(given, dict) else [given]
            watched.run(*args)
        else:
            region = self.graph.prepared
            with interpreting(region, next(iter(region.graphs)), lambda node, value: values.update({node.name: value})):
                self._run(given)
        return [values[node] for node in nodes]

    __call__ = forward

    def _run(self, given: Any) -> Any:
        model = self.graph.prepared if self.graph.prepared is not None else self.graph.module
        if isinstance(given, dict):
            return model(**given)
        return model(*given) if isinstance(given, list) else model(given)


class _Watched(fx.Interpreter):
    def __init__(self, module: fx.GraphModule, values: dict[str, Tensor]):
        super().__init__(module)
        self._values = values

    def run_node(self, n: fx.Node) -> Any:
        self._values[n.name] = super().run_node(n)
        return self._values[n.name]

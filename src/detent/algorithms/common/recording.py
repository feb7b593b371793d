"""Records the values of a node while the float model runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, fx

from detent.algorithms.common.batches import run
from detent.algorithms.common.binding import bound_inputs
from detent.algorithms.common.floating import as_float
from detent.graph import GraphInterpreter, PreparedModel, Region

__all__ = ["interpreting", "record_values"]

Seen = Callable[[fx.Node, Any], None]


def record_values(
    prepared: PreparedModel, region: Region, mode: str, node: fx.Node, batches: Sequence[Any]
) -> list[Tensor]:
    """The float values of `node`, one per execution."""
    found: list[Tensor] = []

    def see(at: fx.Node, value: Any) -> None:
        if at is node and isinstance(value, Tensor):
            found.append(value.detach().clone())

    with torch.no_grad(), as_float(prepared), interpreting(region, mode, see):
        for batch in batches:
            run(prepared, batch)
    return found


@contextmanager
def interpreting(region: Region, mode: str, see: Seen) -> Iterator[None]:
    """Inside the block, `see(node, value)` is called for every node of a graph as it executes."""
    runners = region.runners
    kept = runners[mode]
    watched = _Watched(kept, see)

    def call(*args: Any, **kwargs: Any) -> Any:
        return watched.run(initial_env=bound_inputs(kept, args, kwargs))

    runners[mode] = call  # type: ignore[assignment]
    try:
        yield
    finally:
        runners[mode] = kept


class _Watched(GraphInterpreter):
    def __init__(self, runner: fx.GraphModule, see: Seen):
        super().__init__(runner)
        self._see = see

    def run_node(self, n: fx.Node) -> Any:
        value = super().run_node(n)
        self._see(n, value)
        return value

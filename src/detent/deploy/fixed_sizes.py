"""A network for one size of inputs: what it computes from shapes alone is constant then."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from detent.deploy.qdq_graph import QdqGraph, Read
from detent.deploy.torch_graph import FloatGrids, TorchGraph

__all__ = ["with_fixed_sizes"]


def with_fixed_sizes(graph: QdqGraph, samples: Sequence[Tensor]) -> QdqGraph:
    """The same network for inputs of the sizes of `samples`, without the operations that work sizes out."""
    known = set(graph.constants)
    gone: dict[str, int] = {}
    for index, op in enumerate(graph.ops):
        reads = [read.tensor for read in op.inputs if read is not None]
        if op.type == "Shape" or (reads and known.issuperset(reads) and not _is_coded(graph, op.inputs)):
            known.update(op.outputs)
            gone.update(dict.fromkeys(op.outputs, index))
    if not gone:
        return graph
    module = TorchGraph(graph, FloatGrids()).eval()
    values: dict[int, tuple[Tensor, ...]] = {}

    def keep(index: int) -> Any:
        def hook(_: nn.Module, __: Any, outputs: tuple[Tensor, ...]) -> None:
            values[index] = outputs

        return hook

    for index in set(gone.values()):
        module.operations[index].register_forward_hook(keep(index))
    with torch.no_grad():
        module(*samples)
    constants = {**graph.constants}
    for index, op in enumerate(graph.ops):
        if index in values:
            constants.update({n: v.numpy().copy() for n, v in zip(op.outputs, values[index], strict=True)})
    ops = tuple(op for index, op in enumerate(graph.ops) if index not in values)
    return replace(graph, ops=ops, constants=constants)


def _is_coded(graph: QdqGraph, inputs: Sequence[Read | None]) -> bool:
    """Whether it is a weight on its way to a layer: that keeps its codes."""
    return any(read is not None and read.tensor in graph.coded for read in inputs)

"""Specializes a network to one size of inputs: everything it computes from shapes alone becomes constant."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from detent.ir.folding import fold_constants
from detent.ir.network import Network
from detent.ir.torch_module import FloatGrids, TorchGraph

__all__ = ["with_fixed_sizes"]


def with_fixed_sizes(graph: Network, samples: Sequence[Tensor]) -> Network:
    """The network specialized to the input sizes of `samples`, without operations that compute sizes."""
    asked = any(op.type == "Shape" for op in graph.ops)
    return fold_constants(graph, _shapes(graph, samples) if asked else {}, keep_codes=True)


def _shapes(graph: Network, samples: Sequence[Tensor]) -> dict[str, tuple[int, ...]]:
    """The shape of every tensor when the network runs on `samples`."""
    shapes = {name: tuple(sample.shape) for name, sample in zip(graph.inputs, samples, strict=True)}
    module = TorchGraph(graph, FloatGrids()).eval()

    def keep(names: Sequence[str]) -> Any:
        def hook(_: nn.Module, __: Any, outputs: tuple[Tensor, ...]) -> None:
            shapes.update({name: tuple(value.shape) for name, value in zip(names, outputs, strict=True)})

        return hook

    for op, operation in zip(graph.ops, module.operations, strict=True):
        operation.register_forward_hook(keep(op.outputs))
    with torch.no_grad():
        module(*samples)
    return shapes

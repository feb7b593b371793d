"""The weighted layers of a prepared model: their parameters and quantizers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.nn.utils import parametrize

from detent.graph import FoldedBatchNorm, Region, join, kind_of
from detent.quantizers import Quantizer

__all__ = ["Layer", "all_layers", "layers_of", "modules_of", "op_name", "regions_of", "source_of", "stored_parameter"]


@dataclass(frozen=True)
class Layer:
    """A convolution or linear layer: one node of one graph. `calls` is the number of times the graph calls its
    module."""

    name: str
    kind: str
    node: fx.Node
    module: nn.Module
    region: Region
    calls: int

    @property
    def op(self) -> Any:
        """The convolution or linear layer itself, without a folded batch norm."""
        return self.module.op if isinstance(self.module, FoldedBatchNorm) else self.module

    @property
    def folded(self) -> Any:
        """The batch norm that is folded into it in every forward pass, or None."""
        return self.module.bn if isinstance(self.module, FoldedBatchNorm) else None

    @property
    def weight(self) -> Tensor:
        """The weight before quantization, with the batch norm folded in if there is one."""
        own: Any = self.module
        if self.folded is None and parametrize.is_parametrized(own, "weight"):
            weight: Tensor = own.parametrizations.weight.original
            return weight
        found: Tensor = own.weight
        return found

    @property
    def weight_parameter(self) -> nn.Parameter:
        """The float weight parameter of the operation, which an algorithm may write to."""
        return stored_parameter(self.op, "weight")

    @property
    def bias_parameter(self) -> nn.Parameter | None:
        """The float bias parameter of the operation; None if it has none."""
        return stored_parameter(self.op, "bias") if parametrize.is_parametrized(self.op, "bias") else self.op.bias

    @property
    def quantizer(self) -> Quantizer | None:
        """The quantizer of the weight; None if it stays float."""
        found = _quantizer(self.module, "weight")
        return found if isinstance(found, Quantizer) else None

    @property
    def bias_quantizer(self) -> Quantizer | None:
        """The quantizer of a bias with a scale of its own; None if the bias is float or its scale is derived."""
        found = _quantizer(self.module, "bias")
        return found if isinstance(found, Quantizer) else None

    @property
    def channels(self) -> int:
        return int(self.op.out_features if self.kind == "linear" else self.op.out_channels)

    @property
    def channel_dim(self) -> int:
        """The channel axis of the output, valid for any output of this layer."""
        return -1 if self.kind == "linear" else 1

    @torch.no_grad()
    def quantized_weight(self) -> Tensor:
        """The weight on its grid, as deployed."""
        quantizer = self.quantizer
        if quantizer is None:
            return self.weight.detach()
        training = quantizer.training
        try:
            value = quantizer.eval().quantize(self.weight.detach())
        finally:
            quantizer.train(training)
        return value


def layers_of(region: Region, path: str = "", mode: str | None = None) -> list[Layer]:
    """The layers of one graph of a region in execution order; a module called twice is listed once."""
    modules = modules_of(region)
    graph = region.graphs[mode or next(iter(region.graphs))]
    found: dict[str, Layer] = {}
    calls: dict[str, int] = {}
    for node in graph.nodes:
        kind = kind_of(node, modules)
        if node.op != "call_module" or kind is None or not kind.weighted:
            continue
        target = str(node.target)
        calls[target] = calls.get(target, 0) + 1
        found.setdefault(target, Layer(_name(region, path, target), kind.name, node, modules[target], region, 0))
    return [
        Layer(layer.name, layer.kind, layer.node, layer.module, region, calls[target])
        for target, layer in found.items()
    ]


def regions_of(prepared: nn.Module) -> dict[str, Region]:
    """The parts of a prepared model that have graphs, by name."""
    return {name: part for name, part in prepared.named_modules() if isinstance(part, Region) and part.graphs}


def modules_of(region: Region) -> dict[str, nn.Module]:
    """The modules of a region by name, under each of their names: a shared quantizer has one per tensor."""
    return dict(region.named_modules(remove_duplicate=False))


def source_of(node: fx.Node) -> fx.Node | None:
    """The node that produces an operation's first argument."""
    source = node.args[0] if node.args else node.kwargs.get("input")
    return source if isinstance(source, fx.Node) else None


def all_layers(prepared: nn.Module) -> Iterator[Layer]:
    """The layers of every graph of a prepared model."""
    for path, region in regions_of(prepared).items():
        for mode in region.graphs:
            yield from layers_of(region, path, mode)


def op_name(region: Region, path: str, node: fx.Node) -> str:
    """The name of an operation in recipes."""
    return _name(region, path, str(node.target)) if node.op == "call_module" else join(path, node.name)


def _name(region: Region, path: str, target: str) -> str:
    # A single operation inside a graph break is captured as the part "op" of a region in its place.
    alone = target == "op" and [name for name, _ in region.named_children() if name != "activation_quantizers"] == [
        "op"
    ]
    return path if alone and path else join(path, target)


def stored_parameter(op: Any, which: str) -> nn.Parameter:
    """The float weight or bias of a module, before it is quantized."""
    if parametrize.is_parametrized(op, which):
        stored: nn.Parameter = op.parametrizations[which].original
        return stored
    plain: nn.Parameter = getattr(op, which)
    return plain


def _quantizer(module: Any, which: str) -> nn.Module | None:
    if isinstance(module, FoldedBatchNorm):
        found: nn.Module = getattr(module, f"{which}_quantizer")
        return found
    if parametrize.is_parametrized(module, which):
        first: nn.Module = module.parametrizations[which][0]
        return first
    return None

"""Carries out a Plan: quantizers go on the edges of the graphs and on the weights where they live."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeVar

from torch import Tensor, fx, nn
from torch.nn.utils import parametrize

from detent.errors import CaptureError
from detent.graph.batch_norm import FoldedBatchNorm
from detent.graph.capture.capture import Captured
from detent.graph.derived_bias import DerivedBias
from detent.graph.float_ranges import HOLDER, FloatRange
from detent.graph.kinds import KINDS
from detent.graph.plan import Plan, QuantizedTensor
from detent.graph.recomputing import recompute_weight
from detent.graph.region import ACTIVATION_QUANTIZERS, Region
from detent.graph.torch_ops import kind_of
from detent.graph.zero_slopes import guard_zero_slopes
from detent.quantizers import QUANTIZERS, Quantizer

__all__ = ["insert", "quantizer_path"]

_TAKEN = frozenset(dir(nn.ModuleDict()))

Module = TypeVar("Module", bound=nn.Module)
Nodes = Mapping[str, Sequence[fx.Node]]
"""Of a region, by their names: one in each of its graphs."""


def quantizer_path(node: str) -> str:
    """The path of the quantizer of a node's output in its region.

    >>> quantizer_path("relu"), quantizer_path("values")  # a ModuleDict has values of its own
    ('activation_quantizers.relu', 'activation_quantizers.values__tensor')
    """
    return f"{ACTIVATION_QUANTIZERS}.{node}__tensor" if node in _TAKEN else f"{ACTIVATION_QUANTIZERS}.{node}"


def insert(captured: Captured, plan: Plan) -> None:
    """Put the quantizers of `plan` into the captured regions, in place."""
    made: dict[str, Quantizer] = {}
    nodes = {path: _nodes_by_name(region) for path, region in captured.regions.items()}
    for entry in plan.quantized:
        if entry.quantizer != "derived" and not entry.shares:
            made[entry.tensor] = _make(entry, captured.regions[entry.region], nodes[entry.region])
    for entry in plan.quantized:
        region = captured.regions[entry.region]
        if entry.role == "activation":
            _on_edges(entry, region, nodes[entry.region], made)
        elif entry.quantizer == "derived":
            continue  # needs all others in place
        else:
            _on_parameter(_module_of(entry, region, nodes[entry.region]), entry.role, made[entry.tensor])
    # A shared quantizer has a name for each tensor.
    modules = {path: dict(one.named_modules(remove_duplicate=False)) for path, one in captured.regions.items()}
    for entry in plan.quantized:
        if entry.quantizer == "derived":
            _derive_bias(entry, nodes[entry.region][entry.node][0], modules[entry.region], made)
    for entry in plan.ranges:
        _measure_float_tensor(entry, captured.regions[entry.region], nodes[entry.region])
    for region in captured.regions.values():
        for graph in region.graphs.values():
            guard_zero_slopes(graph, dict(region.named_modules(remove_duplicate=False)))
        region.recompile()


def _nodes_by_name(region: Region) -> Nodes:
    found: dict[str, list[fx.Node]] = {}
    for graph in region.graphs.values():
        for node in graph.nodes:
            found.setdefault(node.name, []).append(node)
    return found


def _make(entry: QuantizedTensor, region: Region, nodes: Nodes) -> Quantizer:
    options = dict(entry.quantizer_options)
    shape = _shape(entry, region, nodes)
    quantizer = QUANTIZERS[entry.quantizer](entry.scheme, shape, role=entry.role, name=entry.tensor, **options)
    # What will measure it: read by `observing`.
    quantizer.observer = (entry.observer, dict(entry.observer_options))
    quantizer.pairs = entry.pairs
    return _on_device_of(region, quantizer)


def _on_device_of(region: Region, module: Module) -> Module:
    parameter = next((p for p in region.parameters()), None)
    return module if parameter is None else module.to(parameter.device)


def _measure_float_tensor(entry: QuantizedTensor, region: Region, nodes: Nodes) -> None:
    """The range of a tensor that stays float; no graph calls it but while it is observed."""
    if not hasattr(region, HOLDER):
        region.add_module(HOLDER, nn.ModuleDict().train(region.training))
    held = _on_device_of(region, FloatRange(entry, _shape(entry, region, nodes)).train(region.training))
    region.get_submodule(HOLDER).add_module(f"{entry.node}__tensor" if entry.node in _TAKEN else entry.node, held)


def _shape(entry: QuantizedTensor, region: Region, nodes: Nodes) -> tuple[int, ...]:
    if entry.role == "activation":
        shape: tuple[int, ...] = nodes[entry.node][0].meta.get("shape", (1,))
        return shape
    tensor: Tensor = getattr(_module_of(entry, region, nodes), entry.role)
    return tuple(tensor.shape)


def _module_of(entry: QuantizedTensor, region: Region, nodes: Nodes) -> nn.Module:
    return region.get_submodule(str(nodes[entry.node][0].target))


def _on_edges(entry: QuantizedTensor, region: Region, nodes: Nodes, made: Mapping[str, Quantizer]) -> None:
    if entry.shares and entry.kind in KINDS and KINDS[entry.kind].moves:
        return  # the values are those of the tensor it shares with: they are on the grid already
    if not hasattr(region, ACTIVATION_QUANTIZERS):
        region.add_module(ACTIVATION_QUANTIZERS, nn.ModuleDict().train(region.training))
    holder = region.get_submodule(ACTIVATION_QUANTIZERS)
    assert isinstance(holder, nn.ModuleDict)
    path = quantizer_path(entry.node)
    holder[path.removeprefix(f"{ACTIVATION_QUANTIZERS}.")] = made[entry.shares or entry.tensor].train(region.training)
    for node in nodes.get(entry.node, ()):
        users = [user for user in node.users if not entry.users or user.name in entry.users]
        with node.graph.inserting_after(node):
            quantized = node.graph.create_node("call_module", path, (node,))
        quantized.meta = dict(node.meta)
        for user in users:
            user.replace_input_with(node, quantized)


def _on_parameter(module: nn.Module, which: str, quantizer: nn.Module) -> None:
    quantizer.train(module.training)
    if isinstance(module, FoldedBatchNorm):
        setattr(module, f"{which}_quantizer", quantizer)
        return
    # Not checked by torch, because that would run it, and it is not calibrated yet.
    parametrize.register_parametrization(module, which, quantizer, unsafe=True)
    module.get_submodule("parametrizations").train(module.training)
    if which == "weight":
        recompute_weight(module)


def _derive_bias(
    entry: QuantizedTensor, node: fx.Node, modules: Mapping[str, nn.Module], made: Mapping[str, Quantizer]
) -> None:
    weight = made[entry.tensor.removesuffix(".bias") + ".weight"]
    source = _quantizer_before(node, modules)
    if source is None:
        raise CaptureError(
            f"the bias {entry.tensor!r} on the scale of input times weight",
            "the input of the operation is not quantized",
            "plan its bias float",
        )
    _on_parameter(modules[str(node.target)], "bias", DerivedBias(entry.scheme, source, weight, entry.tensor))


def _quantizer_before(node: fx.Node, modules: Mapping[str, nn.Module]) -> Quantizer | None:
    """The quantizer of an operation's input, looking through data movement."""
    while True:
        source = node.args[0] if node.args else next(iter(node.kwargs.values()), None)
        source = source[0] if isinstance(source, (list, tuple)) else source
        if not isinstance(source, fx.Node):
            return None
        module = modules.get(str(source.target)) if source.op == "call_module" else None
        if isinstance(module, Quantizer):
            return module
        kind = kind_of(source, modules)
        if kind is None or not kind.moves:
            return None
        node = source

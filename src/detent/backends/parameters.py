"""The weights and biases of one operation in the Plan."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from torch import fx, nn

from detent.backends.backend import Backend
from detent.backends.methods import choose
from detent.backends.placement import Placement
from detent.backends.requests import Requests
from detent.backends.view import GraphView
from detent.graph import FloatTensor, FoldedBatchNorm, Kind, QuantizedTensor, Region
from detent.numerics import PerChannel, PerGroup, PerTensor
from detent.recipes import TensorRequest

__all__ = ["parameters"]

Entry = QuantizedTensor | FloatTensor


def parameters(
    node: fx.Node, calls: int, view: GraphView, backend: Backend, placement: Placement, requests: Requests
) -> Iterator[Entry]:
    """What is decided for the parameters of the module that `node` is the first of `calls` to call."""
    kind = view.kinds.get(node)
    module = view.modules[str(node.target)]
    if kind is None or not kind.weight or not view.holds_weight(node):
        yield from _left_alone(node, module, view, backend)
        return
    weight = _weight(node, kind, view, backend, placement, requests)
    yield weight
    has_bias = getattr(module, "bias", None) is not None or isinstance(module, FoldedBatchNorm)
    if has_bias:
        yield _bias(node, weight, calls, view, backend, placement, requests)


def _left_alone(node: fx.Node, module: nn.Module, view: GraphView, backend: Backend) -> Iterator[FloatTensor]:
    """Matrices inside of operations that are not split into weight and data: recurrent ones, a user's own."""
    if view.layer(node) in view.islands or any(isinstance(part, Region) for part in module.modules()):
        return
    known = node in view.kinds
    reason = (
        f"{backend.name} does not quantize {view.kind(node)}"
        if known and view.kind(node) not in backend.rules
        else f"Detent does not know the weights of {view.kind(node) if known else view.described(node)}"
    )
    for name, parameter in module.named_parameters():
        if parameter.ndim > 1:
            yield FloatTensor(tensor=f"{view.layer(node)}.{name}", kind=view.kind(node), reason=reason)


def _weight(
    node: fx.Node, kind: Kind, view: GraphView, backend: Backend, placement: Placement, requests: Requests
) -> Entry:
    assert kind.weight is not None
    ((name, axis),) = kind.weight.items()
    tensor = f"{view.layer(node)}.{name}"
    rule = backend.rules.get(kind.name)
    request = requests.of("weight", node)
    reason = None
    if rule is None or not rule.weight:
        reason = f"{backend.name} does not quantize {kind.name}"
    elif not placement.in_scope(node):
        reason = "outside of the stubs"
    elif not request.quantize:
        reason = "the recipe excludes it"
    if reason:
        return FloatTensor(tensor=tensor, kind=kind.name, reason=reason)
    method = choose(
        backend.weight_offer(kind.name),
        request,
        backend=backend.name,
        tensor=tensor,
        role="weight",
        axis=axis,
        negative=True,
    )
    return method.entry(tensor=tensor, view=view, node=node, role="weight", why=f"weight of {kind.name}")


def _bias(
    node: fx.Node,
    weight: Entry,
    calls: int,
    view: GraphView,
    backend: Backend,
    placement: Placement,
    requests: Requests,
) -> Entry:
    tensor = f"{view.layer(node)}.bias"
    request = requests.of("bias", node)
    reason = None
    if isinstance(weight, FloatTensor):
        reason = weight.reason
    elif backend.bias == "float":
        reason = f"{backend.name} adds a float bias"
    elif not request.quantize:
        reason = "the recipe keeps biases float"
    elif backend.bias == "int32":
        reason = _why_not_derived(node, weight, calls, view, placement)
    if reason or isinstance(weight, FloatTensor):
        return FloatTensor(tensor=tensor, kind=view.kind(node), reason=reason or "its weight is float")
    offer = backend.bias_offer
    if backend.bias == "int32":
        # The scale is the product of two others, so granularity and kind of scale are not for the recipe to choose.
        request = TensorRequest(bits=request.bits, rounding=request.rounding)
        per_channel = isinstance(weight.scheme.granularity, PerChannel)
        offer = replace(offer, granularities=(PerChannel if per_channel else PerTensor,))
    method = choose(offer, request, backend=backend.name, tensor=tensor, role="bias", axis=0, negative=True)
    if backend.bias == "int32":
        method = replace(method, quantizer="derived", observer="")
        return method.entry(tensor=tensor, view=view, node=node, role="bias", why="scale of input times weight")
    return method.entry(tensor=tensor, view=view, node=node, role="bias", why=f"bias of {view.kind(node)}")


def _why_not_derived(
    node: fx.Node, weight: QuantizedTensor, calls: int, view: GraphView, placement: Placement
) -> str | None:
    """Why a bias has no scale that follows from its input and its weight."""
    if calls > 1:
        return f"called {calls} times: its scale would be another each time"
    if not all(placement.on_grid(source, node) for source in view.data_inputs(node)):
        return f"{view.layer(node)} takes in a float tensor"
    if isinstance(weight.scheme.granularity, PerGroup):
        return "the groups of its weight have no common scale"
    return None

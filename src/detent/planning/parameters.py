"""Plans the weights and biases of one operation."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from torch import fx, nn

from detent.graph import FloatTensor, FoldedBatchNorm, PlanEntry, QuantizedTensor, Region
from detent.numerics import PAIR_LIMIT, PerChannel, PerGroup, PerTensor, Scheme
from detent.planning.context import Context
from detent.planning.methods import choose
from detent.recipes import TensorRequest

__all__ = ["OF_GROUPS", "parameters"]

OF_GROUPS = "inputs do not divide into groups of"
"""In the reason why a weight stays float, between two numbers."""


def parameters(node: fx.Node, context: Context, *, calls: int) -> Iterator[PlanEntry]:
    """The Plan's entries for the parameters of the module that `node` is the first of `calls` nodes to call."""
    view = context.view
    kind = view.kinds.get(node)
    if kind is None or not kind.weight or not view.holds_weight(node):
        yield from _unsplit_matrices(node, context)
        return
    ((name, axis),) = kind.weight.items()
    weight = _weight(node, context, name=name, axis=axis)
    yield weight
    module = view.modules[str(node.target)]
    if getattr(module, "bias", None) is not None or isinstance(module, FoldedBatchNorm):
        yield _bias(node, context, weight, calls=calls)


def _unsplit_matrices(node: fx.Node, context: Context) -> Iterator[FloatTensor]:
    """Matrices inside operations that are not split into weight and data, such as recurrent layers and user-defined
    operations."""
    view, backend = context.view, context.backend
    module = view.modules[str(node.target)]
    if view.layer(node) in view.graph_breaks or any(isinstance(part, Region) for part in module.modules()):
        return
    kind = view.kind(node)
    reason = f"Detent does not know the weights of {kind}"
    if node in view.kinds and kind not in backend.rules:
        reason = f"{backend.name} does not quantize {kind}"
    for name, parameter in module.named_parameters():
        if parameter.ndim > 1:
            yield FloatTensor(tensor=f"{view.layer(node)}.{name}", kind=kind, reason=reason)


def _weight(node: fx.Node, context: Context, *, name: str, axis: int) -> PlanEntry:
    view, backend = context.view, context.backend
    kind = view.kind(node)
    tensor = f"{view.layer(node)}.{name}"
    rule = backend.rules.get(kind)
    request = context.requests.of("weight", node)
    reason = None
    if rule is None or not rule.weight:
        reason = f"{backend.name} does not quantize {kind}"
    elif not context.placement.in_scope(node):
        reason = "outside of the stubs"
    elif not request.quantize:
        reason = "the recipe excludes it"
    elif view.conv_axes(node) not in (None, *backend.conv_axes):
        reason = f"{backend.name} has no integer convolution over {view.conv_axes(node)} axes"
    else:
        reason = context.placement.why_precise(node)
    if reason:
        return FloatTensor(tensor=tensor, kind=kind, reason=reason)
    supported = backend.weight_schemes(kind, depthwise=view.is_depthwise(node))
    method = choose(supported, request, backend=backend.name, tensor=tensor, role="weight", axis=axis, negative=True)
    reason = _why_no_groups(view.modules[str(node.target)], name, method.scheme)
    if reason:
        return FloatTensor(tensor=tensor, kind=kind, reason=reason)
    pairs = view.pairs(node) if context.any_cpu and _may_saturate(method.scheme) else None
    return method.entry(tensor=tensor, view=view, node=node, role="weight", why=f"weight of {kind}", pairs=pairs)


def _why_no_groups(module: nn.Module, name: str, scheme: Scheme) -> str | None:
    """Why a weight cannot be quantized in groups: files have whole groups only."""
    granularity, weight = scheme.granularity, getattr(module, name, None)
    if not isinstance(granularity, PerGroup) or weight is None:
        return None
    size = weight.shape[granularity.axis] if weight.ndim > granularity.axis else 1
    return f"{size} {OF_GROUPS} {scheme.group}" if size % scheme.group else None


def _may_saturate(scheme: Scheme) -> bool:
    """Whether two products of a weight's codes with unsigned codes may exceed 16 bits when they are added. Kernels for
    unsigned weights do not add in pairs; weights in groups are multiplied in float."""
    largest = max(scheme.grid.qmax, -scheme.grid.qmin)
    return scheme.grid.signed and 2 * largest > PAIR_LIMIT and not isinstance(scheme.granularity, PerGroup)


def _bias(node: fx.Node, context: Context, weight: PlanEntry, *, calls: int) -> PlanEntry:
    view, backend = context.view, context.backend
    tensor, kind = f"{view.layer(node)}.bias", view.kind(node)
    if isinstance(weight, FloatTensor):
        return FloatTensor(tensor=tensor, kind=kind, reason=weight.reason)
    derived = backend.bias == "int32"
    request = context.requests.of("bias", node)
    reason = _why_not_derived(node, context, weight, calls=calls) if derived else None
    if backend.bias == "float":
        reason = f"{backend.name} adds a float bias"
    elif not request.quantize:
        reason = "the recipe keeps biases float"
    if reason:
        return FloatTensor(tensor=tensor, kind=kind, reason=reason)
    supported, why = backend.bias_schemes, f"bias of {kind}"
    if derived:
        # The scale is the product of two others, so its granularity is not for the recipe to choose.
        per_channel = isinstance(weight.scheme.granularity, PerChannel)
        supported = replace(supported, granularities=(PerChannel if per_channel else PerTensor,))
        request = TensorRequest(bits=request.bits, rounding=request.rounding)
        why = "scale of input times weight"
    method = choose(supported, request, backend=backend.name, tensor=tensor, role="bias", axis=0, negative=True)
    if derived:
        method = replace(method, quantizer="derived", observer="")
    return method.entry(tensor=tensor, view=view, node=node, role="bias", why=why)


def _why_not_derived(node: fx.Node, context: Context, weight: QuantizedTensor, *, calls: int) -> str | None:
    """Why the scale of a bias is not derived from those of its input and weight."""
    if calls > 1:
        return f"called {calls} times: its scale would be another each time"
    if not all(context.placement.on_grid(source, node) for source in context.view.data_inputs(node)):
        return f"{context.view.layer(node)} takes in a float tensor"
    if isinstance(weight.scheme.granularity, PerGroup):
        return "the groups of its weight have no common scale"
    return None

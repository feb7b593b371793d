"""The schemes and scales of a prepared model's tensors, for another backend."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor, fx, nn

from detent.errors import SchemeError
from detent.graph import (
    REORDERING,
    Captured,
    CarriedScales,
    Plan,
    PreparedModel,
    QuantizedTensor,
    join,
    kind_of,
    quantizers_of,
    ranges_of,
    sum_of_weights,
)
from detent.known_qparams import Known, measured
from detent.numerics import QParams, Scheme
from detent.retargeting.numbers import alike, as_scheme

__all__ = ["known_of", "refuse_unknown", "remember", "with_reordered", "with_weights"]

_OUT_OF_DATE = "its range was measured before training changed the weights"
_UNMEASURED = "no range of it is known: it was trained since, held infinities, or an earlier version calibrated it"
_AGAIN = "; or measure it, `with detent.observing(prepared, only_float=True)`, and deploy again"


def known_of(prepared: PreparedModel) -> Known:
    """The scheme of each tensor and its measured or learned scale; a tensor that shares a scale has that of its source.

    Float tensors have the range measured during calibration, as long as the weights are the same. A model that was
    retargeted, and not trained since, has what the original had.
    """
    weights = sum_of_weights(prepared)
    before = prepared.carried or CarriedScales({}, {}, weights)
    first = before.known if before.weights == weights else {}
    found: dict[str, tuple[Scheme, QParams]] = {
        **{one.name: (one.scheme, one.qparams()) for one in ranges_of(prepared) if one.is_of(weights)},
        **first,
    }
    for quantizer in quantizers_of(prepared):
        held = quantizer.scheme, quantizer.qparams()
        name = quantizer.name
        if name not in first or name not in before.adopted or not alike(before.adopted[name], held):
            found[name] = held
    for entry in prepared.plan.quantized:
        if entry.shares and entry.tensor not in found and entry.shares in found:
            found[entry.tensor] = found[entry.shares]
    return found


def remember(moved: PreparedModel, known: Known, adopted: Known) -> None:
    """Store in `moved` what is known of tensors that it keeps float, or has on a common grid with others."""
    weights = sum_of_weights(moved)
    moved.carried = CarriedScales(known, adopted, weights)
    for one in ranges_of(moved):
        held = as_scheme(known[one.name], one.scheme) if one.name in known else None
        if held is not None:
            one.keep(held, weights)


def with_reordered(known: Known, planned: Plan, captured: Captured) -> Known:
    """`known`, extended to tensors that are a reordering of known ones and have their own grid in the new plan."""
    found = dict(known)
    for entry in planned.quantized:
        if entry.role != "activation" or entry.tensor in known:
            continue
        name, node = entry.tensor, _node_of(entry, captured)
        modules = dict(captured.regions[entry.region].named_modules())
        while name not in known and _kind(node, modules) in REORDERING:
            node = node.all_input_nodes[0]
            name = join(entry.region, node.name)
        if name in known:
            found[entry.tensor] = known[name]
    return found


def _kind(node: fx.Node, modules: Mapping[str, nn.Module]) -> str | None:
    kind = kind_of(node, modules)
    return kind.name if kind is not None and node.all_input_nodes else None


def _node_of(entry: QuantizedTensor, captured: Captured) -> fx.Node:
    graphs = captured.regions[entry.region].graphs.values()
    found: fx.Node = next(node for graph in graphs for node in graph.nodes if node.name == entry.node)
    return found


def with_weights(known: Known, planned: Plan, captured: Captured) -> Known:
    """`known`, extended by the scales of parameters and constants that only the new plan quantizes: measuring them
    needs no data."""
    found = dict(known)
    for entry in planned.quantized:
        value = None if entry.quantizer == "derived" or entry.tensor in known else _held(entry, captured)
        if value is not None:
            qparams = measured(value, entry.scheme, entry.observer, entry.observer_options, name=entry.tensor)
            found[entry.tensor] = entry.scheme, qparams
    return found


def _held(entry: QuantizedTensor, captured: Captured) -> Tensor | None:
    """The parameter or constant that the model holds under this name, if there is one."""
    region, node = captured.regions[entry.region], _node_of(entry, captured)
    if entry.role != "activation":
        return getattr(region.get_submodule(str(node.target)), entry.role)  # type: ignore[no-any-return]
    if node.op != "get_attr":
        return None
    owner, _, last = str(node.target).rpartition(".")
    return getattr(region.get_submodule(owner), last)  # type: ignore[no-any-return]


def refuse_unknown(planned: Plan, carried: Known, prepared: PreparedModel) -> None:
    """Refuse a tensor that only the new plan quantizes and whose range was never measured."""
    ranges = {one.name: one for one in ranges_of(prepared)}
    for entry in planned.quantized:
        if entry.tensor in carried or entry.quantizer == "derived":
            continue
        one = ranges.get(entry.tensor)
        found, other = "was not before, so it has none", ""
        if one is not None:
            found, other = (_OUT_OF_DATE if one.measured else _UNMEASURED), _AGAIN
        raise _refusal(entry, planned.backend, found, other)


def _refusal(entry: QuantizedTensor, backend: str, found: str, other: str) -> SchemeError:
    return SchemeError(
        f"keep the scale of {entry.tensor!r} for {backend}",
        f"it is quantized there ({entry.why}) and {found}",
        f"prepare and calibrate for {backend}{other}",
    )

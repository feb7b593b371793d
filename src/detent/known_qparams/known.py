"""Puts known scales, from another backend's calibration or from a file, into a Plan."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import nn
from torch.nn.utils import parametrize

from detent.errors import SchemeError
from detent.frontends.onnx import OnnxEncoding, OnnxSource
from detent.graph import KINDS, FloatTensor, Plan, PlanEntry, QuantizedTensor, quantizers_of
from detent.known_qparams.norms import scaled
from detent.numerics import IntGrid, PerChannel, PerGroup, PerTensor, QParams, Scheme
from detent.observers import OBSERVERS
from detent.planning import Backend, SupportedSchemes
from detent.quantizers import Quantizer

__all__ = ["Known", "adopt", "initialize", "known_of_file", "limits", "measured", "with_their_biases"]

Known = Mapping[str, tuple[Scheme, QParams]]
"""Tensor of the plan to the scheme it has and the scale that came out."""


def adopt(plan: Plan, known: Known, target: Backend) -> Plan:
    """`plan` with the schemes of `known`; refuses tensors that are not known or whose scheme `target` does not
    support."""
    return replace(plan, entries=with_their_biases(_adopted(entry, known, target) for entry in plan.entries))


def with_their_biases(entries: Iterable[PlanEntry]) -> tuple[PlanEntry, ...]:
    """Entries of a plan whose weights have new schemes, with the biases derived from them."""
    known = tuple(entries)
    weights = {e.tensor: e.scheme for e in known if isinstance(e, QuantizedTensor) and e.role == "weight"}
    return tuple(_as_its_weight(entry, weights) for entry in known)


def _as_its_weight(entry: PlanEntry, weights: Mapping[str, Scheme]) -> PlanEntry:
    """The entry of a bias with the granularity of its weight, from whose scale its own is derived."""
    weight = weights.get(entry.tensor.removesuffix(".bias") + ".weight")
    if isinstance(entry, FloatTensor) or entry.quantizer != "derived" or weight is None:
        return entry
    if isinstance(weight.granularity, PerGroup):
        reason = "the groups of its weight have no common scale"
        return FloatTensor(tensor=entry.tensor, kind=entry.kind, reason=reason)
    granularity = PerChannel(0) if isinstance(weight.granularity, PerChannel) else PerTensor()
    return replace(entry, scheme=replace(entry.scheme, granularity=granularity))


def initialize(prepared: nn.Module, known: Known) -> None:
    """Initialize the quantizers of tensors whose scheme is the known one, and of weights that have a different one."""
    for quantizer in quantizers_of(prepared):
        scheme, qparams = known.get(quantizer.name, (None, None))
        if qparams is not None and scheme == quantizer.scheme:
            quantizer.initialize(qparams)
    for module in prepared.modules():
        held = module[0] if isinstance(module, parametrize.ParametrizationList) else None
        if isinstance(held, Quantizer) and held.name in known and not held.calibrated:
            weight = module.original
            assert isinstance(weight, torch.Tensor)
            _measure(held, weight)


def _measure(quantizer: Quantizer, weight: torch.Tensor) -> None:
    """A weight on a grid that the backend does not support is measured on another one, which needs no data."""
    found = measured(weight, quantizer.scheme, *quantizer.observer, name=quantizer.name)
    quantizer.initialize(quantizer.widened(found, weight))


def measured(weight: torch.Tensor, scheme: Scheme, observer: str, options: Mapping[str, Any], *, name: str) -> QParams:
    """The result of an observer for a tensor whose values are known."""
    watch = OBSERVERS[observer](scheme, name=name, **options)
    watch.observe(weight.detach())
    return watch.qparams()


def _adopted(entry: PlanEntry, known: Known, target: Backend) -> PlanEntry:
    if isinstance(entry, FloatTensor) or entry.quantizer == "derived":
        return entry
    if entry.tensor not in known:
        raise SchemeError(
            f"keep the scale of {entry.tensor!r} for {target.name}",
            f"it is quantized there ({entry.why}) and was not before, so it has none",
            f"prepare and calibrate for {target.name}",
        )
    scheme, _ = known[entry.tensor]
    lacking = limits(scheme, entry, target)
    if not lacking:
        return replace(entry, scheme=scheme, pairs=None)
    raise SchemeError(
        f"keep the scale of {entry.tensor!r} for {target.name}",
        f"it is {scheme}; {target.name} has {', '.join(lacking)}",
        f"prepare and calibrate for {target.name}",
    )


def limits(scheme: Scheme, entry: QuantizedTensor, target: Backend, *, of_file: bool = False) -> list[str]:
    """The schemes of `target` for tensors like `entry`, if it does not support the known one; otherwise nothing."""
    offers = _offer(entry, target).alternatives
    kept = target.file_weight if entry.role == "weight" else target.file_activation
    if of_file and kept is not None:
        offers = (*offers, kept)
    return min((one.limits(scheme) for one in offers), key=len)


def _offer(entry: QuantizedTensor, target: Backend) -> SupportedSchemes:
    if entry.role == "weight":
        return target.weight_schemes(entry.kind)
    if entry.role == "bias":
        return target.bias_schemes
    return (target.network_input if entry.kind == "input" else None) or target.activation


def known_of_file(
    source: OnnxSource, plan: Plan, modules: Mapping[str, str], factors: Mapping[str, torch.Tensor]
) -> Known:
    """The qparams that the Q and DQ of an ONNX file give to weights of a plan and to all activations.

    `modules` has the module of each node; `factors` has what the weight of a module has been multiplied by since.
    """
    found: dict[str, tuple[Scheme, QParams]] = {}
    activation = next((entry.scheme for entry in plan.quantized if entry.role == "activation"), None)
    for node in source.tensors:
        encoding = _of_activation(source, node)
        if encoding is not None and activation is not None:
            found[node] = _of_encoding(encoding, activation, transposed=False)
    for entry in plan.quantized:
        path = modules.get(entry.node, "")
        held = source.parameters.get(f"{path}.{entry.role}")
        if entry.role == "activation":
            encoding = _of_activation(source, entry.node)
        else:
            encoding = source.encodings.get(held.initializer) if held else None
        if encoding is not None and entry.quantizer != "derived":
            turned = entry.role != "activation" and bool(held and held.transposed)
            found[entry.tensor] = _of_encoding(encoding, entry.scheme, turned)
            if entry.role == "weight" and path in factors:
                found[entry.tensor] = scaled(found[entry.tensor], factors[path])
    for entry in plan.quantized:
        # The file may quantize after a Reshape, and the plan before it: the numbers are the same.
        one_scale = entry.tensor in found and isinstance(found[entry.tensor][0].granularity, PerTensor)
        if entry.shares and one_scale and KINDS[entry.kind].moves:
            found.setdefault(entry.shares, found[entry.tensor])
    return found


def _of_activation(source: OnnxSource, node: str) -> OnnxEncoding | None:
    """Not of int32 tensors: such a sum is a bias that is added by a separate operation."""
    encoding = source.encodings.get(source.tensors.get(node, ""))
    return None if encoding is None or encoding.dtype == "int32" else encoding


def _of_encoding(encoding: OnnxEncoding, planned: Scheme, transposed: bool) -> tuple[Scheme, QParams]:
    """The scheme of a tensor in a file. Files do not give the rounding, and rarely a narrow range: these come from the
    plan."""
    low, high = encoding.limits
    signed, bits = low < 0, (high - min(low, 0)).bit_length()
    symmetric = not encoding.zero_point.any() and (signed or planned.symmetric)
    narrow = signed and symmetric and planned.grid.narrow
    if encoding.ends is not None:
        narrow = signed and low == -high
    axis = encoding.axis
    if axis is not None and transposed:
        axis = 1 - axis
    granularity = PerTensor() if axis is None else PerChannel(axis)
    if axis is not None and encoding.block:
        granularity = PerGroup(axis, encoding.block)  # type: ignore[assignment]
    scale, zero_point = torch.from_numpy(encoding.scale.copy()), torch.from_numpy(encoding.zero_point.copy())
    if transposed and encoding.block:
        scale, zero_point = scale.T.contiguous(), zero_point.T.contiguous()
    powers = planned.scale == "power_of_two" and bool((torch.frexp(scale)[0] == 0.5).all())
    scheme = Scheme(
        IntGrid(bits, signed=signed, narrow=narrow),
        symmetric,
        granularity,
        scale="power_of_two" if powers else "float",
        rounding=planned.rounding,
    )
    return scheme, QParams(scale, zero_point)

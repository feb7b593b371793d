"""Scales that are known beforehand, from another backend's calibration or from a file, taken into a Plan."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import fx, nn
from torch.nn.utils import parametrize

from detent.backends import Backend
from detent.errors import SchemeError
from detent.graph import KINDS, FloatTensor, Plan, QuantizedTensor, kind_of, quantizers_of
from detent.numerics import IntGrid, PerChannel, PerGroup, PerTensor, QParams, Scheme
from detent.observers import OBSERVERS
from detent.onnx_import import OnnxEncoding, OnnxSource
from detent.quantizers import Quantizer

__all__ = ["Known", "adopt", "as_in_file", "initialise", "known_of_file"]

Known = Mapping[str, tuple[Scheme, QParams]]
"""Tensor of the plan to the scheme it has and the scale that came out."""


def adopt(plan: Plan, known: Known, target: Backend, *, needed: bool) -> Plan:
    """`plan` with the schemes of `known` where `target` has them.

    With `needed` every tensor must be known and its scheme on offer, or it is refused by name; otherwise what does not
    fit stays as planned, to be calibrated.
    """
    return replace(plan, entries=tuple(_adopted(entry, known, target, needed) for entry in plan.entries))


def as_in_file(plan: Plan, known: Known, graphs: Iterable[fx.Graph], modules: Mapping[str, nn.Module]) -> Plan:
    """`plan` with those tensors float that a file leaves float; one with scales for weights only is planned anew."""
    held = {entry.tensor: entry for entry in plan.quantized}
    if not any(held[tensor].role == "activation" for tensor in known if tensor in held):
        return plan
    kept = {tensor for tensor, entry in held.items() if tensor in known or entry.shares in known}
    on_grid = {entry.node for entry in held.values() if entry.role == "activation" and entry.tensor in kept}
    nodes = {node.name: node for graph in graphs for node in graph.nodes}
    for tensor, entry in held.items():
        weight = tensor.removesuffix(".bias") + ".weight"
        if entry.quantizer == "derived" and weight in kept and _reads_grid(nodes[entry.node], on_grid, modules):
            kept.add(tensor)
    entries = [
        FloatTensor(tensor=entry.tensor, kind=entry.kind, reason="the file leaves it float")
        if entry.tensor in held and entry.tensor not in kept
        else entry
        for entry in plan.entries
    ]
    return replace(plan, entries=tuple(entries))


def _reads_grid(node: fx.Node, on_grid: set[str], modules: Mapping[str, nn.Module]) -> bool:
    """Whether what an operation takes in lies on a grid, looking through operations that only move values."""
    while True:
        sources = node.all_input_nodes
        if not sources:
            return False
        node = sources[0]
        if node.name in on_grid:
            return True
        kind = kind_of(node, modules)
        if kind is None or not kind.moves:
            return False


def initialise(prepared: Any, known: Known) -> None:
    """Set the quantizers of the tensors whose scheme is the known one, and those of weights that have another."""
    for quantizer in quantizers_of(prepared):
        scheme, qparams = known.get(quantizer.name, (None, None))
        if qparams is not None and scheme == quantizer.scheme:
            quantizer.initialise(qparams)
    for module in prepared.modules():
        held = module[0] if isinstance(module, parametrize.ParametrizationList) else None
        if isinstance(held, Quantizer) and held.name in known and not held.calibrated:
            _measure(held, module.original)


def _measure(quantizer: Quantizer, weight: torch.Tensor) -> None:
    """A weight that a file has on a grid the backend lacks needs no data to be put on another."""
    name, options = quantizer.observer
    observer = OBSERVERS[name](quantizer.scheme, name=quantizer.name, **options)
    observer.observe(weight.detach())
    quantizer.initialise(observer.qparams())


def _adopted(
    entry: QuantizedTensor | FloatTensor, known: Known, target: Backend, needed: bool
) -> QuantizedTensor | FloatTensor:
    if isinstance(entry, FloatTensor) or entry.quantizer == "derived":
        return entry
    if entry.tensor not in known:
        if not needed:
            return entry
        raise SchemeError(
            f"keep the scale of {entry.tensor!r} for {target.name}",
            f"it is quantized there ({entry.why}) and was not before, so it has none",
            f"prepare and calibrate for {target.name}",
        )
    scheme, _ = known[entry.tensor]
    offer = target.weight_offer(entry.kind) if entry.role == "weight" else target.activation
    limits = min((one.limits(scheme) for one in offer.alternatives), key=len)
    if not limits:
        return replace(entry, scheme=scheme)
    if not needed:
        return entry
    raise SchemeError(
        f"keep the scale of {entry.tensor!r} for {target.name}",
        f"it is {scheme}; {target.name} has {', '.join(limits)}",
        f"prepare and calibrate for {target.name}",
    )


def known_of_file(source: OnnxSource, plan: Plan, modules: Mapping[str, str]) -> Known:
    """What the Q and DQ of an ONNX file say of the tensors of a plan. `modules` names the module of a node."""
    found: dict[str, tuple[Scheme, QParams]] = {}
    for entry in plan.quantized:
        if entry.role == "activation":
            encoding = source.encodings.get(source.tensors.get(entry.node, ""))
            transposed = False
        else:
            held = source.parameters.get(f"{modules.get(entry.node, '')}.{entry.role}")
            encoding = source.encodings.get(held.initializer) if held else None
            transposed = bool(held and held.transposed)
        if encoding is not None and entry.quantizer != "derived":
            found[entry.tensor] = _of_encoding(encoding, entry.scheme, transposed)
    for entry in plan.quantized:
        # The file may quantize behind a Reshape what is planned before it: the numbers are the same.
        if entry.shares and entry.tensor in found and KINDS[entry.kind].moves:
            found.setdefault(entry.shares, found[entry.tensor])
    return found


def _of_encoding(encoding: OnnxEncoding, planned: Scheme, transposed: bool) -> tuple[Scheme, QParams]:
    """The scheme a file stores a tensor by. Narrow grids and rounding are not told there: the planned ones decide."""
    signed, bits = not encoding.dtype.startswith("u"), int(encoding.dtype.lstrip("uint"))
    symmetric = not encoding.zero_point.any() and (signed or planned.symmetric)
    narrow = signed and symmetric and isinstance(planned.grid, IntGrid) and planned.grid.narrow
    axis = encoding.axis
    if axis is not None and transposed:
        axis = 1 - axis
    granularity = PerTensor() if axis is None else PerChannel(axis)
    if axis is not None and encoding.block:
        granularity = PerGroup(axis, encoding.block)  # type: ignore[assignment]
    scale, zero_point = torch.from_numpy(encoding.scale.copy()), torch.from_numpy(encoding.zero_point.copy())
    powers = planned.scale == "power_of_two" and bool((torch.frexp(scale)[0] == 0.5).all())
    scheme = Scheme(
        IntGrid(bits, signed=signed, narrow=narrow),
        symmetric,
        granularity,
        scale="power_of_two" if powers else "float",
        rounding=planned.rounding,
    )
    return scheme, QParams(scale, zero_point)

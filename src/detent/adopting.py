"""Scales that are known beforehand, from another backend's calibration or from a file, taken into a Plan."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch

from detent.backends import Backend
from detent.errors import SchemeError
from detent.graph import FloatTensor, Plan, QuantizedTensor, quantizers_of
from detent.numerics import IntGrid, PerChannel, PerGroup, PerTensor, QParams, Scheme
from detent.onnx_import import OnnxEncoding, OnnxSource

__all__ = ["Known", "adopt", "initialise", "known_of_file"]

Known = Mapping[str, tuple[Scheme, QParams]]
"""Tensor of the plan to the scheme it has and the scale that came out."""


def adopt(plan: Plan, known: Known, target: Backend, *, needed: bool) -> Plan:
    """`plan` with the schemes of `known` where `target` has them.

    With `needed` every tensor must be known and its scheme on offer, or it is refused by name; otherwise what does not
    fit stays as planned, to be calibrated.
    """
    return replace(plan, entries=tuple(_adopted(entry, known, target, needed) for entry in plan.entries))


def initialise(prepared: Any, known: Known) -> None:
    """Set the quantizers of the tensors whose scheme is the known one."""
    for quantizer in quantizers_of(prepared):
        scheme, qparams = known.get(quantizer.name, (None, None))
        if qparams is not None and scheme == quantizer.scheme:
            quantizer.initialise(qparams)


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
    return found


def _of_encoding(encoding: OnnxEncoding, planned: Scheme, transposed: bool) -> tuple[Scheme, QParams]:
    """The scheme a file stores a tensor by. Narrow grids are not told apart there: the planned one decides."""
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
    scheme = Scheme(IntGrid(bits, signed=signed, narrow=narrow), symmetric, granularity)
    return scheme, QParams(scale, zero_point)

"""The schemes that a quantized ONNX file has, against those that a target has.

What the target has is taken over as it is. An activation that it cannot have keeps its range, on the grid that was
planned for it; a weight is put on the planned grid too, which needs no data.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor

from detent.graph import Plan, QuantizedTensor
from detent.known_qparams.known import Known, limits, with_their_biases
from detent.numerics import IntGrid, PerTensor, QParams, Scheme, choose_qparams
from detent.planning import Backend

__all__ = ["as_offered"]

Numbers = tuple[Scheme, QParams]


def as_offered(plan: Plan, known: Known, target: Backend) -> tuple[Plan, Known]:
    """`plan` with the schemes of a file, as far as the target supports them, and the scales that go with them.

    Tensors that are not in `plan` may be placed later; their schemes are changed like those of other activations.
    """
    usual = next((_of_any_sign(entry) for entry in plan.quantized if entry.role == "activation"), None)
    own = {entry.tensor: entry for entry in plan.quantized if entry.quantizer != "derived"}
    given = known if target.arbitrary_qdq_placement else _joined(own, known)
    found: dict[str, Numbers] = {}
    for tensor, numbers in given.items():
        entry = own.get(tensor, usual)
        if entry is not None:
            found[tensor] = _had(numbers, entry, target)
    entries = (
        _changed(entry, given[entry.tensor][0], found[entry.tensor][0], target)
        if isinstance(entry, QuantizedTensor) and entry.tensor in own and entry.tensor in found
        else entry
        for entry in plan.entries
    )
    return replace(plan, entries=with_their_biases(entries)), found


def _of_any_sign(entry: QuantizedTensor) -> QuantizedTensor:
    """The entry with a signed grid, for an activation that may have negative values."""
    if not entry.scheme.symmetric or entry.scheme.grid.signed:
        return entry
    return replace(entry, scheme=replace(entry.scheme, grid=IntGrid(entry.scheme.grid.bits)))


def _joined(own: Mapping[str, QuantizedTensor], known: Known) -> Known:
    """`known` with one common grid for tensors that share one on the target, wide enough for all of them."""
    groups: dict[str, list[QuantizedTensor]] = {}
    for entry in own.values():
        groups.setdefault(entry.shares or entry.tensor, []).append(entry)
    found = dict(known)
    for root, members in groups.items():
        held = [known[entry.tensor] for entry in members if entry.tensor in known]
        if not held or len(members) == 1:
            continue
        numbers = held[0]
        if any(not _equal(numbers, other) for other in held):
            ends = [_ends(*one) for one in held]
            numbers = _over(min(low for low, _ in ends), max(high for _, high in ends), own[root].scheme)
        found.update((entry.tensor, numbers) for entry in members)
    return found


def _had(numbers: Numbers, entry: QuantizedTensor, target: Backend) -> Numbers:
    """The numbers unchanged, if the target supports them for such a tensor, or if a weight is to be measured again."""
    if entry.role == "weight" or not limits(numbers[0], entry, target, of_file=True):
        return numbers
    return _shifted(numbers, entry.scheme) or _over(*_ends(*numbers), entry.scheme)


def _over(low: Tensor, high: Tensor, planned: Scheme) -> Numbers:
    """The planned grid over a given range. A grid without negative numbers is planned for tensors that have none."""
    least = low.clamp(min=0) if planned.symmetric and not planned.grid.signed else low
    return planned, choose_qparams(least, high, planned)


def _changed(entry: QuantizedTensor, of_file: Scheme, had: Scheme, target: Backend) -> QuantizedTensor:
    if entry.role == "weight" and limits(of_file, entry, target, of_file=True):
        return replace(entry, why=f"{entry.why}; {of_file} in the file")
    why = entry.why if had == of_file else f"{entry.why}; the range that {of_file} has in the file"
    return replace(entry, scheme=had, why=why, pairs=None)


def _equal(left: Numbers, right: Numbers) -> bool:
    (scheme, one), (other_scheme, other) = left, right
    equal = torch.equal(one.scale, other.scale) and torch.equal(one.zero_point, other.zero_point)
    return scheme == other_scheme and equal


def _shifted(numbers: Numbers, planned: Scheme) -> Numbers | None:
    """The grid with codes of the other signedness, if the plan uses that."""
    scheme, qparams = numbers
    grids = scheme.grid, planned.grid
    if not (grids[0].is_uniform and grids[1].is_uniform) or grids[0].bits != grids[1].bits:
        return None
    alike = isinstance(scheme.granularity, PerTensor) and planned.scale == "float" and not planned.symmetric
    if not alike or grids[0].levels != grids[1].levels:
        return None
    return planned, QParams(qparams.scale, qparams.zero_point + (grids[1].qmin - grids[0].qmin))


def _ends(scheme: Scheme, qparams: QParams) -> tuple[Tensor, Tensor]:
    """The lowest and highest number of a grid, over all its channels."""
    low, high = (end * qparams.scale.double() for end in scheme.grid.ends(qparams.zero_point.double()))
    return low.min().float(), high.max().float()

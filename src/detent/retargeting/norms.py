"""Batch norms that only the other backend folds: how that changes scales measured without folding.

The weight of a channel is multiplied by the norm's factor g. With the scale s |g| its codes stay what they are, but for
their sign, so a weight with one scale has one for each channel then. The output of the operation is what the norm gave.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from detent.errors import SchemeError
from detent.graph import Captured, Plan, foldable, folding_factor, join
from detent.known_qparams import Known, scaled
from detent.numerics import PerGroup, QParams, Scheme

__all__ = ["Norm", "after_folding", "norms_of"]


@dataclass(frozen=True)
class Norm:
    """A batch norm that follows a weighted operation: the output tensors of both, and the factor per channel."""

    taken: str
    given: str
    factor: Tensor
    transposed: bool

    def of_weight(self, weight: Tensor) -> Tensor:
        """The weight after folding."""
        return weight * self.factor.reshape(-1, *[1] * (weight.ndim - 1))


def norms_of(captured: Captured) -> dict[str, Norm]:
    """Each batch norm that may be folded, by the name of its module."""
    found: dict[str, Norm] = {}
    for path, region in captured.regions.items():
        modules = dict(region.named_modules())
        for graph in region.graphs.values():
            for op, norm in foldable(graph, modules):
                found[join(path, str(norm.target))] = Norm(
                    join(path, op.name),
                    join(path, norm.name),
                    folding_factor(modules[str(norm.target)]),
                    bool(getattr(modules[str(op.target)], "transposed", False)),
                )
    return found


def after_folding(known: Known, norms: Mapping[str, Norm], merges: Mapping[str, str], planned: Plan) -> Known:
    """`known` for a network whose batch norms were folded as `merges` says; refused if a scale cannot be adapted."""
    quantized = {entry.tensor for entry in planned.quantized}
    found: dict[str, tuple[Scheme, QParams]] = dict(known)
    for path, operation in merges.items():
        norm = norms[path]
        for tensor in (norm.taken, f"{operation}.bias"):
            found.pop(tensor, None)
        if norm.given in found:
            found[norm.taken] = found.pop(norm.given)
        weight = f"{operation}.weight"
        if weight not in found or weight not in quantized:
            continue
        if not _can_follow(found[weight], norm):
            raise SchemeError(
                f"keep the scale of {weight!r} for {planned.backend}",
                f"the batch norm {path!r} is folded into it there, and {found[weight][0]} cannot follow",
                f"prepare and calibrate for {planned.backend}",
            )
        found[weight] = scaled(found[weight], norm.factor)
    return found


def _can_follow(held: tuple[Scheme, QParams], norm: Norm) -> bool:
    scheme, qparams = held
    by_group = isinstance(scheme.granularity, PerGroup)
    return not (norm.transposed or by_group or qparams.zero_point.any()) and scheme.scale == "float"

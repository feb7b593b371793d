"""Transfers scales to the Plan of another backend: the same numbers if it stores them differently, and a common grid if
it has one for several tensors."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn

from detent.errors import SchemeError
from detent.graph import KINDS, FoldedBatchNorm, Plan, PreparedModel, QuantizedTensor, eval_mode
from detent.known_qparams import Known, limits
from detent.numerics import QParams, Scheme, choose_qparams
from detent.planning import Backend
from detent.quantizers import Quantizer
from detent.retargeting.norms import Norm
from detent.retargeting.numbers import Held, alike, ends, same_numbers

__all__ = ["carried", "keep_codes"]


def carried(known: Known, plan: Plan, target: Backend) -> tuple[dict[str, Held], list[str]]:
    """The known qparams of the tensors of `plan`, in schemes that `target` supports; and notes.

    - Rounding is the target's and independent of scales.
    - Codes of the other signedness, and affine ones with zero point 0, are the same real numbers; so is a narrow range,
      except for one number at its end.
    - Tensors that share a grid only on the target get the range of all of them.
    - A range that is built into a kernel of the target is used as it is.
    """
    found: dict[str, Held] = {}
    notes: list[str] = []
    for entry in plan.quantized:
        if entry.role != "activation" and entry.tensor in known:
            _, found[entry.tensor] = _as_offered(known[entry.tensor], entry, target)
    for root, members in _groups(plan):
        if root.observer == "fixed":
            one = root.scheme, _of_range(root.observer_options["low"], root.observer_options["high"], root.scheme)
        else:
            offered = [
                _as_offered(known[member.tensor], member, target) for member in members if member.tensor in known
            ]
            if not offered:
                continue
            held = [one for _, one in offered]
            one = held[0] if all(alike(held[0], other) for other in held) else _common(held, root)
            if one is not held[0]:
                notes.append(f"{', '.join(member.tensor for member in members)} have one grid, for the range of all")
            elif offered[0][0] == 2:
                notes.append(f"{root.tensor} has its scale on a narrow range there, which is one code less")
        moved = [member for member in members if member.tensor in known or KINDS[member.kind].moves]
        found.update((member.tensor, one) for member in (members if root.observer == "fixed" else moved))
    return found, notes


def keep_codes(prepared: PreparedModel, moved: PreparedModel, norms: Mapping[str, Norm]) -> None:
    """Give the weights of `moved` the codes that they have in `prepared`; `norms` went into some of them since.

    A quantizer may do more than take the nearest code (AdaRound learns which one, DoReFa bends the weights), and what
    holds the scales in `moved` does not: such weights are replaced by the numbers that their codes stand for.
    """
    wanted = {entry.tensor for entry in moved.plan.quantized if entry.role == "weight"}
    with torch.no_grad(), eval_mode(prepared), eval_mode(moved):
        before = {
            name: norms[name].of_weight(value) if name in norms else value for name, value, _ in _weights(prepared)
        }
        wanted &= before.keys()
        for name, value, become in _weights(moved):
            if name in wanted and not torch.equal(value, before[name]):
                become(before[name])
        for name, value, _ in _weights(moved):
            # The same codes; a scale that was multiplied by a norm's factor has been rounded once more.
            if name in wanted and not torch.allclose(value, before[name], rtol=1e-5, atol=0):
                raise SchemeError(
                    f"keep the codes of {name!r} for {moved.plan.backend}",
                    "it uses the lowest code of its grid, and the grid there has no code for that number",
                    f"prepare and calibrate for {moved.plan.backend}, or begin with weights whose `narrow` is true",
                )


def _weights(model: nn.Module) -> Iterator[tuple[str, Tensor, Callable[[Tensor], object]]]:
    """Each quantized weight by name, with what changes it before it is quantized."""
    for module in model.modules():
        if isinstance(module, FoldedBatchNorm) and isinstance(module.weight_quantizer, Quantizer):
            yield module.weight_quantizer.name, module.weight_quantizer(module.weight), module.fold_to
        for which, held in getattr(module, "parametrizations", {}).items():
            if isinstance(held[0], Quantizer):
                yield held[0].name, getattr(module, which), held.original.copy_


def _groups(plan: Plan) -> Iterator[tuple[QuantizedTensor, list[QuantizedTensor]]]:
    """The activations that share a grid, by the one whose quantizer it is."""
    entries = {entry.tensor: entry for entry in plan.quantized if entry.role == "activation"}
    groups: dict[str, list[QuantizedTensor]] = {}
    for entry in entries.values():
        root = entry
        while root.shares is not None and root.shares in entries:
            root = entries[root.shares]
        groups.setdefault(root.tensor, []).append(entry)
    for root_name, members in groups.items():
        yield entries[root_name], members


def _as_offered(held: Held, entry: QuantizedTensor, target: Backend) -> tuple[int, Held]:
    """An equivalent scheme that `target` supports: the planned one, otherwise the original one if it can; and how much
    it differs (`same_numbers`)."""
    given = replace(held[0], rounding=entry.scheme.rounding), held[1]
    offered = [one for one in same_numbers(given) if not limits(one[1][0], entry, target)]
    return min(offered, key=lambda one: (one[0], one[1][0] != entry.scheme), default=(0, given))


def _common(held: Sequence[Held], root: QuantizedTensor) -> Held:
    """The grid among them that covers the range of all, to half a step; otherwise a new one."""
    reached = [ends(*one) for one in held]
    low, high = min(low for low, _ in reached), max(high for _, high in reached)
    for one, (least, greatest) in zip(held, reached, strict=True):
        half = float(one[1].scale.max()) / 2
        if least <= low + half and greatest >= high - half:
            return one
    return root.scheme, _of_range(low, high, root.scheme)


def _of_range(low: float, high: float, scheme: Scheme) -> QParams:
    return choose_qparams(torch.tensor(low), torch.tensor(high), scheme)

"""Parameter names of the float model: a float checkpoint can be loaded into a prepared model and read back."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from detent.graph.batch_norm import merged
from detent.graph.corrections import BEFORE_CORRECTION

if TYPE_CHECKING:
    from detent.graph.prepared import PreparedModel

__all__ = ["FloatNames", "float_state_dict", "translate_float_state"]


@dataclass(frozen=True)
class _Merged:
    """A merged batch norm: where it went, and its values."""

    place: str  # of the operation, in the prepared model
    weight: str  # name of its weight in the float model
    bias: str  # and of its bias, which it may not have
    norm: str  # name of the batch norm in the float model
    eps: float

    def merge(self, given: Mapping[str, Tensor], module: Any) -> tuple[Tensor, Tensor]:
        """Weight and bias of the operation, from the tensors of a float checkpoint."""
        op: Any = SimpleNamespace(
            weight=given[self.weight],
            bias=given.get(self.bias),
            transposed=getattr(module, "transposed", False),
            groups=getattr(module, "groups", 1),
        )
        norm = SimpleNamespace(
            eps=self.eps,
            weight=given.get(f"{self.norm}.weight"),
            bias=given.get(f"{self.norm}.bias"),
            running_mean=given[f"{self.norm}.running_mean"],
            running_var=given[f"{self.norm}.running_var"],
        )
        return merged(op, norm)


@dataclass(frozen=True)
class FloatNames:
    """Where each tensor of the float model is in the prepared one."""

    places: Mapping[str, str | None]
    """Float name -> name in the state dict of the prepared model, None for what it no longer has."""
    transposed: frozenset[str]
    """Float names of matrices that have their rows where the float model has columns."""
    merged: tuple[_Merged, ...]
    """The batch norms that were merged into operations."""
    split: Mapping[str, tuple[str, ...]]
    """Float name -> names in the state dict of the prepared model of the parts that have its rows, in order."""

    @classmethod
    def of(
        cls,
        prepared: nn.Module,
        float_tensors: Mapping[str, Tensor],
        merges: Mapping[str, str],
        modules: Mapping[str, nn.Module],
        transposed: Collection[int] = (),
        split: Mapping[int, Sequence[Tensor]] | None = None,
    ) -> FloatNames:
        """`float_tensors` are the tensors themselves, under their float names: they are found again by identity.

        `merges` maps merged batch norms to the operations they went into, `modules` has both, as they were before.
        `transposed` are ids of tensors, `split` has the parts of some by their ids.
        """
        names = {id(tensor): name for name, tensor in float_tensors.items()}
        places: dict[int, str] = {}
        for place, tensor in prepared.state_dict(keep_vars=True).items():
            places.setdefault(id(tensor), place)
        merged_norms = []
        for norm_place, place in merges.items():
            norm: Any = modules[norm_place]
            op: Any = modules[place]
            weight = names[id(_original(op, "weight"))]
            own_bias = f"{weight.removesuffix('weight')}bias" if weight.endswith(".weight") else ""
            bias = names.get(id(_original(op, "bias")), own_bias)
            name = names[id(norm.running_mean)].removesuffix(".running_mean")
            merged_norms.append(_Merged(place, weight, bias, name, norm.eps))
        return cls(
            {name: places.get(id(tensor)) for name, tensor in float_tensors.items()},
            frozenset(name for name, tensor in float_tensors.items() if id(tensor) in transposed),
            tuple(merged_norms),
            {
                name: tuple(places[id(part)] for part in split[id(tensor)])
                for name, tensor in float_tensors.items()
                if split and id(tensor) in split
            },
        )


def _original(op: Any, which: str) -> Tensor | None:
    parametrized = parametrize.is_parametrized(op, which)
    found: Tensor | None = op.parametrizations[which].original if parametrized else getattr(op, which)
    return found


def float_state_dict(prepared: PreparedModel) -> dict[str, Tensor]:
    """The weights under the float model's names; load them into the float model to get it with these weights.

    A merged batch norm comes back as one that only adds: mean 0, variance 1, and the bias that merging computed. Biases
    that calibrating corrected, and training has not changed since, are those of the float model.
    """
    state, names = prepared.state_dict(), prepared.float_names
    state |= {
        key.removeprefix(BEFORE_CORRECTION): value for key, value in state.items() if key.startswith(BEFORE_CORRECTION)
    }
    found: dict[str, Tensor] = {name: state[place] for name, place in names.places.items() if place is not None}
    found |= {name: found[name].t().contiguous() for name in names.transposed}
    found |= {name: torch.cat([state[place] for place in parts]) for name, parts in names.split.items()}
    for norm in names.merged:
        bias = state[_place_of_bias(state, norm.place)]
        one, zero = torch.ones_like(bias), torch.zeros_like(bias)
        kept_by_op = norm.bias in names.places
        found[f"{norm.norm}.weight"], found[f"{norm.norm}.bias"] = torch.sqrt(one + norm.eps), bias
        if kept_by_op:
            found[f"{norm.norm}.bias"] = zero
        found[f"{norm.norm}.running_mean"], found[f"{norm.norm}.running_var"] = zero, one
        if f"{norm.norm}.weight" not in names.places:  # nothing to scale and shift with: the statistics must
            found[f"{norm.norm}.running_var"] = one - norm.eps
            found[f"{norm.norm}.running_mean"] = zero if kept_by_op else -bias
        found[f"{norm.norm}.num_batches_tracked"] = torch.zeros((), dtype=torch.int64, device=bias.device)
    return {name: found[name] for name in names.places}


def translate_float_state(
    prepared: PreparedModel, state: dict[str, Tensor], prefix: str, _: Any, __: bool, missing: list[str], *___: Any
) -> None:
    """A float checkpoint, recognized by its names, becomes a state of the prepared model.

    What it lacks of the float model is reported as missing, by its float name, and stays as it is; so does what only
    the prepared model has, the scales.
    """
    here = {key.removeprefix(prefix): value for key, value in state.items() if key.startswith(prefix)}
    own, names = prepared.state_dict(), prepared.float_names
    own = {key: value for key, value in own.items() if not key.startswith(BEFORE_CORRECTION)}
    if not here or set(here) <= set(own) or not set(here) <= set(names.places):
        return
    places = {name: place for name, place in names.places.items() if place is not None}
    here |= {name: here[name].t() for name in names.transposed if name in here and here[name].ndim == 2}
    translated = {places[name]: value for name, value in here.items() if name in places}
    for name, parts in names.split.items():
        if name in here:
            rows = torch.split(here[name], [len(own[place]) for place in parts])
            translated.update(zip(parts, rows, strict=True))
    for norm in names.merged:
        needed = (norm.weight, f"{norm.norm}.running_mean", f"{norm.norm}.running_var")
        weight_place, bias_place = places[norm.weight], _place_of_bias(own, norm.place)
        if all(name in here for name in needed):
            merged_now = norm.merge(here, prepared.get_submodule(norm.place))
            translated[weight_place], translated[bias_place] = merged_now
        else:
            translated.pop(weight_place, None)
    missing.extend(prefix + name for name in names.places if name not in here)
    for key in here:
        del state[prefix + key]
    for key, value in own.items():
        state[prefix + key] = translated.get(key, value)


def _place_of_bias(state: Mapping[str, Tensor], op: str) -> str:
    """The path of an operation's bias, quantized or not."""
    quantized = f"{op}.parametrizations.bias.original"
    return quantized if quantized in state else f"{op}.bias"

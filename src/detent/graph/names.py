"""Float names: a float checkpoint loads into a prepared model, and its weights are read back as a float one."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

from detent.graph.batch_norm import merged

__all__ = ["float_state_dict", "remember_float_names"]


def remember_float_names(
    prepared: nn.Module, float_tensors: Mapping[str, Tensor], merges: Mapping[str, str], norms: Mapping[str, nn.Module]
) -> None:
    """Note where each tensor of the float model has gone, and load float checkpoints accordingly.

    `float_tensors` are the tensors themselves, under their float names: they are found again by identity.
    `merges` maps merged batch norms to the operations they went into; `norms` are those batch norms.
    """
    places = {id(tensor): name for name, tensor in prepared.state_dict(keep_vars=True).items()}
    holder: Any = prepared
    holder.float_names = {name: places.get(id(tensor)) for name, tensor in float_tensors.items()}
    holder.merged_norms = {name: (op, _Norm.of(norms[name])) for name, op in merges.items()}
    prepared.register_load_state_dict_pre_hook(_translate)  # type: ignore[no-untyped-call]


class _Norm:
    """What is left to know of a batch norm once it is merged."""

    def __init__(self, eps: float, affine: bool):
        self.eps, self.affine = eps, affine

    @classmethod
    def of(cls, bn: Any) -> _Norm:
        return cls(bn.eps, bn.weight is not None)


def float_state_dict(prepared: Any) -> dict[str, Tensor]:
    """The weights under the float model's names; loading them into it gives the float model of these weights.

    A merged batch norm comes back as one that only adds: mean 0, variance 1, and the bias that merging made.
    """
    state = prepared.state_dict()
    found = {name: state[place] for name, place in prepared.float_names.items() if place is not None}
    for name, (op, norm) in prepared.merged_norms.items():
        weight = found[f"{op}.weight"]
        bias = prepared.get_submodule(op).bias.detach()
        one = torch.ones_like(bias)
        found[f"{name}.running_mean"], found[f"{name}.running_var"] = torch.zeros_like(bias), one
        if f"{name}.num_batches_tracked" in prepared.float_names:
            found[f"{name}.num_batches_tracked"] = torch.zeros((), dtype=torch.int64, device=weight.device)
        if norm.affine:
            found[f"{name}.weight"] = torch.sqrt(one + norm.eps)
            found[f"{name}.bias"] = bias if f"{op}.bias" not in prepared.float_names else torch.zeros_like(bias)
    return {name: found[name] for name in prepared.float_names}


def _translate(prepared: Any, state: dict[str, Tensor], prefix: str, *_: Any) -> None:
    """A float checkpoint, recognised by its names, becomes a state of the prepared model."""
    here = {key.removeprefix(prefix): value for key, value in state.items() if key.startswith(prefix)}
    own = prepared.state_dict()
    if not here or set(here) <= set(own) or not set(here) <= set(prepared.float_names):
        return
    given = dict(here)
    for name, (op, norm) in prepared.merged_norms.items():
        _merge_given(given, name, op, norm, prepared)
    for key in here:
        del state[prefix + key]
    translated = {prepared.float_names.get(key) or key: value for key, value in given.items()}
    # What the float model does not have stays as it is: the scales, and biases that merging made.
    for key, value in {**own, **{k: v for k, v in translated.items() if k in own}}.items():
        state[prefix + key] = value


def _merge_given(given: dict[str, Tensor], name: str, op: str, norm: _Norm, prepared: Any) -> None:
    """Merge a batch norm that stands in a checkpoint, as it was merged in the model."""
    module = prepared.get_submodule(op)
    as_op: Any = SimpleNamespace(
        weight=given[f"{op}.weight"],
        bias=given.get(f"{op}.bias"),
        transposed=getattr(module, "transposed", False),
        groups=getattr(module, "groups", 1),
    )
    as_norm = SimpleNamespace(
        eps=norm.eps,
        weight=given.get(f"{name}.weight"),
        bias=given.get(f"{name}.bias"),
        running_mean=given[f"{name}.running_mean"],
        running_var=given[f"{name}.running_var"],
    )
    given[f"{op}.weight"], bias = merged(as_op, as_norm)
    for key in [key for key in given if key.startswith(f"{name}.")]:
        del given[key]
    given.pop(f"{op}.bias", None)
    given[_place_of_bias(prepared, op)] = bias


def _place_of_bias(prepared: nn.Module, op: str) -> str:
    """Where the bias of an operation is kept, quantized or not."""
    names = (f"{op}.bias", f"{op}.parametrizations.bias.original")
    return next(name for name in names if name in prepared.state_dict())

"""Weights that are computed from other parameters whenever they are read become plain ones, with the same numbers.

These are torch's parametrizations (weight norm, spectral norm, a user's own), their older forms that are hooks, and
pruning masks. What is quantized, trained and deployed is then the weight itself; what the computation kept true of it
(a norm, zeros) is no longer kept in training.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Mapping
from types import CellType, FunctionType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize, prune, remove_spectral_norm, remove_weight_norm
from torch.nn.utils.spectral_norm import SpectralNorm
from torch.nn.utils.weight_norm import WeightNorm

from detent.errors import CaptureError
from detent.graph.capture.running import flat

__all__ = ["copied", "give_own_class", "materialize_parametrizations", "without_compiled"]


def copied(model: nn.Module) -> nn.Module:
    """A deep copy, also where hooks left computed tensors in a module, which torch refuses to copy."""
    held = [value for module in model.modules() for value in flat(vars(module))]
    known = {id(value): value.detach().clone() for value in held if isinstance(value, Tensor) and not value.is_leaf}
    try:
        made = copy.deepcopy(model, known)
    except Exception as error:
        raise CaptureError(
            f"copy a {type(model).__name__}, because prepare leaves the model as it was",
            f"{type(error).__name__}: {error}",
            "remove what cannot be copied from the model, or pass inplace=True, which changes the model itself",
        ) from error
    for module in made.modules():
        for place in (vars(module), *(value for value in vars(module).values() if isinstance(value, dict))):
            functions = [(name, value) for name, value in place.items() if inspect.isfunction(value)]
            for name, function in functions:  # a configuration may be a dictionary that refuses every change
                if (following := _following(function, known)) is not function:
                    place[name] = following
    for original, duplicate in zip(model.modules(), made.modules(), strict=True):
        for name in (vars(duplicate).keys() & duplicate._modules.keys()) - vars(original).keys():
            del vars(duplicate)[name]  # nn.TransformerDecoderLayer puts ReLU before an activation that is a module
    return made


def without_compiled(model: nn.Module) -> nn.Module:
    """The model, without what torch.compile puts around it and, in place, around its parts."""
    for part in list(model.modules()):
        for name, child in part.named_children():
            if _compiled(child) is not None:
                setattr(part, name, _compiled(child))
    return _compiled(model) or model


def _compiled(module: nn.Module) -> nn.Module | None:
    """The module inside a torch.compile wrapper: the wrapper's class is not public, but its state dict shows the
    name."""
    inside = vars(module)["_modules"].get("_orig_mod")
    return inside if isinstance(inside, nn.Module) else None


def _following(function: Callable[..., Any], copies: Mapping[int, Any]) -> Callable[..., Any]:
    """A function that a model holds, as a hook, with the copies of those modules that it was written around."""
    names, cells = function.__code__.co_freevars, function.__closure__ or ()
    around = inspect.getclosurevars(function).nonlocals
    found = [copies.get(id(around[name])) if isinstance(around.get(name), nn.Module) else None for name in names]
    if not any(isinstance(each, nn.Module) for each in found):
        return function
    closure = tuple(cell if new is None else CellType(new) for cell, new in zip(cells, found, strict=True))
    made = FunctionType(function.__code__, function.__globals__, function.__name__, function.__defaults__, closure)
    made.__kwdefaults__ = function.__kwdefaults__
    return made


def materialize_parametrizations(model: nn.Module) -> None:
    """Replace parametrizations by plain parameters, in place. The model is in eval mode, so that reading changes
    nothing."""
    for module in list(model.modules()):
        for hook in list(module._forward_pre_hooks.values()):
            if isinstance(hook, WeightNorm):
                remove_weight_norm(module, hook.name)
            elif isinstance(hook, SpectralNorm):
                remove_spectral_norm(module, hook.name)
        for which in _masked(module):
            prune.remove(module, which)  # type: ignore[no-untyped-call]
        if parametrize.is_parametrized(module):
            _compute(module)


def _masked(module: nn.Module) -> list[str]:
    """The parameters that `torch.nn.utils.prune` multiplies by a mask."""
    names = [name.removesuffix("_mask") for name in module._buffers if name.endswith("_mask")]
    return [name for name in names if f"{name}_orig" in module._parameters]


def _compute(module: Any) -> None:
    give_own_class(module)
    # Whether the weight is trained is read off the tensor that is computed.
    with torch.enable_grad():
        for which in list(module.parametrizations):
            parametrize.remove_parametrizations(module, which, leave_parametrized=True)


def give_own_class(module: nn.Module) -> None:
    """torch keeps the parametrized attributes in a class made for the module, which a copy of it shares.

    Removing them there would take them from the original too.
    """
    shared = type(module)
    held = {name: value for name, value in vars(shared).items() if name not in ("__dict__", "__weakref__")}
    module.__class__ = type(shared.__name__, shared.__bases__, held)

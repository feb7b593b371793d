"""`prepare_qat_fx` as the benchmark calls it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import nn

from detent.compat.mqbench.phases import PlatformModel
from detent.compat.mqbench.platform import target_of
from detent.errors import RecipeError
from detent.recipes import BatchNorm, Recipe

__all__ = ["prepare_qat_fx"]


def prepare_qat_fx(
    model: nn.Module, qconfig_dict: Mapping[str, Any], foldbn_config: BatchNorm, *, backend: Any = "academic"
) -> PlatformModel:
    """A model that trains with `get_qconfig`'s requests on the places of `backend`."""
    if set(qconfig_dict) != {""}:
        raise RecipeError(f"qconfig_dict with {list(qconfig_dict)}", "allowed is the key ''", "use a recipe's rules")
    recipe = Recipe(name="mqbench", batch_norm=foldbn_config, **qconfig_dict[""])
    return PlatformModel(model, backend=target_of(backend), recipe=recipe)

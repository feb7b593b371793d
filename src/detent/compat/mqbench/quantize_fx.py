"""`prepare_qat_fx` as the benchmark calls it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import nn

from detent.compat.mqbench.hardware import GRAPHS
from detent.compat.mqbench.model_quantizer import ModelQuantizer
from detent.compat.mqbench.phases import PlatformModel
from detent.compat.mqbench.platform import target_of
from detent.errors import RecipeError
from detent.recipes import BatchNorm, Recipe

__all__ = ["prepare_qat_fx"]


def prepare_qat_fx(
    model: nn.Module,
    qconfig_dict: Mapping[str, Any],
    foldbn_config: BatchNorm,
    *,
    backend: Any = None,
    example_inputs: Sequence[Any] | None = None,
) -> PlatformModel:
    """A model that trains with `get_qconfig`'s requests on the places of `backend`.

    Without one these are torch's, graph 3 of the benchmark; with `ada_sign`, which is for papers, those of `academic`.
    """
    if set(qconfig_dict) != {""}:
        raise RecipeError(f"qconfig_dict with {list(qconfig_dict)}", "allowed is the key ''", "use a recipe's rules")
    recipe = Recipe(name="mqbench", batch_norm=foldbn_config, **qconfig_dict[""])
    quantizer = ModelQuantizer()
    usual = GRAPHS[1] if recipe.activation.signed == "auto" else GRAPHS[3]
    quantizer.base = usual if backend is None else target_of(backend)
    return PlatformModel(
        model, lambda float_model, inputs: quantizer.traced(float_model, inputs, recipe), example_inputs=example_inputs
    )

"""`ptq_reconstruction`: AdaRound, BRECQ and QDrop by one name, as MQBench has them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from detent.algorithms import run_algorithm
from detent.compat.mqbench.phases import PlatformModel
from detent.compat.mqbench.qconfig import checked_keys
from detent.errors import RecipeError

__all__ = ["ptq_reconstruction"]

_KEYS = ("pattern", "prob", "max_count", "scale_lr", "warm_up", "b_range", "round_mode")
_FIXED = {"b_range": [20, 2], "round_mode": "learned_hard_sigmoid"}


def ptq_reconstruction(model: PlatformModel, cali_data: Iterable[Any], config: Mapping[str, Any]) -> PlatformModel:
    """Learn rounding (and activation scales) of a calibrated model; `prepared.algorithm_notes` says what came out.

    `pattern` "layer" is AdaRound; "block" is BRECQ, or QDrop with a `prob` below 1. A dict is enough.
    """
    checked_keys(config, _KEYS, "ptq_reconstruction config")
    for key, only in _FIXED.items():
        if key in config and config[key] not in (only, tuple(only)):
            raise RecipeError(f"{key} = {config[key]!r}", f"allowed is {only!r}, the papers' own", "remove it")
    pattern, prob = config.get("pattern", "block"), float(config.get("prob", 1.0))
    if pattern not in ("layer", "block"):
        raise RecipeError(f"pattern = {pattern!r}", "allowed are 'layer', 'block'", "use one of these")
    options: dict[str, Any] = {
        "steps": int(config.get("max_count", 20000)),
        "warm_up": float(config.get("warm_up", 0.2)),
    }
    name = "adaround"
    if pattern == "block":
        name = "brecq" if prob == 1.0 else "qdrop"
        options["scale_rate"] = float(config.get("scale_lr", 4e-5))
        options |= {} if prob == 1.0 else {"drop": 1.0 - prob}
    model.enter("quantized")
    run_algorithm(name, model.prepared, list(cali_data), options)
    return model

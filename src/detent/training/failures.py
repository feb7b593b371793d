"""Finds where values stopped being finite."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from detent.errors import RangeError
from detent.training.batch import call

__all__ = ["broken_parameters", "first_broken_layer", "stopped"]


def broken_parameters(model: nn.Module) -> list[str]:
    """The names of parameters that contain NaN or Inf."""
    return [name for name, p in model.named_parameters() if not bool(torch.isfinite(p).all())]


@torch.no_grad()
def first_broken_layer(model: nn.Module, batch: Any) -> str | None:
    """The first layer, in execution order, whose output contains NaN or Inf."""
    found: list[str] = []

    def note(name: str) -> Any:
        def hook(_: nn.Module, __: Any, output: Any) -> None:
            if not found and isinstance(output, Tensor) and not bool(torch.isfinite(output).all()):
                found.append(name)

        return hook

    hooks = [module.register_forward_hook(note(name)) for name, module in model.named_modules() if name]
    try:
        call(model, batch)
    finally:
        for hook in hooks:
            hook.remove()
    return found[0] if found else None


def stopped(model: nn.Module, batch: Any, loss: float, step: int, kept: Path | None) -> RangeError:
    """The error that ends training: the step, the layer, and where the last good state is. `batch` is the one that
    failed."""
    parameters = broken_parameters(model)
    if parameters:
        where = f"NaN or Inf is in {', '.join(parameters[:4])}{' and others' if len(parameters) > 4 else ''}"
    else:
        layer = first_broken_layer(model, batch)
        where = f"the first layer whose output holds NaN or Inf is {layer!r}" if layer else "every layer is finite"
    found = f"the loss is {loss} at step {step}; {where}"
    advice = "lower the learning rates, or look at the data"
    return RangeError("train on", found, f"{advice}; the last good checkpoint is {kept}" if kept else advice)

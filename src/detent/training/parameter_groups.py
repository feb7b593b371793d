"""Parameter groups for optimizers: scales, parameters with weight decay, and parameters without."""

from __future__ import annotations

from typing import Any

from torch import nn

from detent.graph import quantizers_of

__all__ = ["parameter_groups"]


def parameter_groups(
    prepared: nn.Module, *, lr: float, weight_decay: float = 0.0, scale_lr: float | None = None
) -> list[dict[str, Any]]:
    """Groups for any torch optimizer, named `weights`, `norms and biases`, and `scales`.

    What quantizers learn (steps, clips, intervals) has a learning rate of its own and no weight decay: decay would
    pull every range to zero. Vectors (biases, the gains of norms) are not decayed either. Empty groups are left out.
    """
    learned = [p for quantizer in quantizers_of(prepared) for p in quantizer.parameters(recurse=False)]
    known = {id(parameter) for parameter in learned}
    rest = [p for p in prepared.parameters() if id(p) not in known]
    groups: list[dict[str, Any]] = [
        {"name": "weights", "params": [p for p in rest if p.ndim > 1], "lr": lr, "weight_decay": weight_decay},
        {"name": "norms and biases", "params": [p for p in rest if p.ndim <= 1], "lr": lr, "weight_decay": 0.0},
        {"name": "scales", "params": learned, "lr": lr if scale_lr is None else scale_lr, "weight_decay": 0.0},
    ]
    return [group for group in groups if group["params"]]

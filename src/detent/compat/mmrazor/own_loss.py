"""Training on what a model's `loss` mode says, as OpenMMLab's models compute it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from detent.errors import TensorError
from detent.graph import PreparedModel
from detent.training import Run, validate
from detent.training.batch import inputs_of, to_float32

__all__ = ["OwnLossRun", "total_loss"]


def total_loss(losses: Any) -> Tensor:
    """The sum of all entries whose names have "loss" in them, each a tensor or a list of them: of their means.

    >>> total_loss({"loss_cls": torch.tensor([1.0, 3.0]), "loss_box": [torch.tensor(0.5)], "acc": torch.tensor(9.0)})
    tensor(2.5000)
    """
    if isinstance(losses, Tensor):
        return losses.mean()
    named = {name: one for name, one in losses.items() if "loss" in name} if isinstance(losses, Mapping) else {}
    if not named:
        given = ", ".join(losses) if isinstance(losses, Mapping) else type(losses).__name__
        raise TensorError(f"the loss mode gives {given}", "nothing in it is a loss", "return dict(loss=...)")
    parts = [part.mean() for one in named.values() for part in (one if isinstance(one, (list, tuple)) else [one])]
    return torch.stack(parts).sum()


@dataclass(eq=False)
class OwnLossRun(Run):
    """A run of a model with the forward modes `loss`, which is trained on, and `tensor`, which gives the answers."""

    def loss(self, model: nn.Module, batch: Any) -> tuple[Any, Tensor]:
        inputs = inputs_of(batch)
        with self.precision.forward(self.prepared):
            losses = model(*inputs.args, **inputs.kwargs, mode="loss")
        losses = to_float32(losses)
        return losses, total_loss(losses)

    def validate(self) -> dict[str, float]:
        return validate(_BothModes(self.prepared), self.val, self.processes, metrics=self.metrics)


class _BothModes(nn.Module):
    """The answers and the loss of a batch, under the names that validation looks for."""

    def __init__(self, prepared: PreparedModel):
        super().__init__()
        self.prepared = prepared

    def forward(self, *args: Any) -> dict[str, Any]:
        answers = self.prepared(*args, mode="tensor")
        return {"logits": answers, "loss": total_loss(self.prepared(*args, mode="loss"))}

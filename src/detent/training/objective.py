"""What training makes small: cross entropy with smoothed labels, and what a float teacher says."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from detent.errors import TensorError

__all__ = ["Objective"]


@dataclass(frozen=True, eq=False)
class Objective:
    """`(1 - weight) * cross entropy + weight * T^2 * KL(teacher || student)` of logits softened by the temperature T.

    Hinton et al., "Distilling the Knowledge in a Neural Network", 2015. Without a teacher it is the cross entropy.
    """

    label_smoothing: float = 0.0
    teacher: nn.Module | None = None
    weight: float = 0.5
    temperature: float = 1.0

    def __call__(self, outputs: Any, labels: Tensor, inputs: tuple[Any, ...]) -> Tensor:
        """The loss of a batch: the mean over its samples."""
        logits = _logits(outputs)
        loss = F.cross_entropy(logits, labels, label_smoothing=self.label_smoothing)
        if self.teacher is None:
            return loss
        self.teacher.eval()
        with torch.no_grad():
            target = _logits(self.teacher(*inputs))
        soft = self.temperature
        distance = F.kl_div(
            F.log_softmax(logits / soft, 1), F.log_softmax(target / soft, 1), reduction="batchmean", log_target=True
        )
        return (1 - self.weight) * loss + self.weight * soft**2 * distance


def _logits(outputs: Any) -> Tensor:
    if not isinstance(outputs, Tensor):
        raise TensorError(
            f"a loss of outputs of type {type(outputs).__name__}",
            "the loops train classifiers, whose output is one tensor of logits",
            "write a loop of your own: the prepared model is an ordinary module",
        )
    return outputs

"""The training objective: the model's own loss, or cross entropy with smoothed labels and a float teacher."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from detent.errors import TensorError
from detent.training.batch import call, labels_of

__all__ = ["LossFunction", "Objective", "checked_loss", "logits_of", "own_loss"]

LossFunction = Callable[[Any, Any], Tensor]
"""From the outputs of the model and the batch they are of to one number, the mean over the batch."""


@dataclass(frozen=True, eq=False)
class Objective:
    """The loss that the model computed itself, if it did, or else that of a classifier.

    That is `(1 - weight) * cross entropy + weight * T^2 * KL(teacher || student)` of logits softened by the temperature
    T (Hinton et al., "Distilling the Knowledge in a Neural Network", 2015); without a teacher the cross entropy.
    """

    label_smoothing: float = 0.0
    teacher: nn.Module | None = None
    weight: float = 0.5
    temperature: float = 1.0

    def __call__(self, outputs: Any, batch: Any) -> Tensor:
        """The loss of a batch: the mean over its samples."""
        own = own_loss(outputs)
        if own is not None:
            return self._alone(own)
        logits, labels = logits_of(outputs), labels_of(batch)
        if logits is None or not isinstance(labels, Tensor):
            raise TensorError(
                f"a loss of outputs of type {type(outputs).__name__} and labels of type {type(labels).__name__}",
                "the model is not a classifier, and gives no loss",
                "let it return its loss, or a dict with 'loss', or name a loss function of (outputs, batch)",
            )
        loss = F.cross_entropy(logits, labels, label_smoothing=self.label_smoothing)
        if self.teacher is None:
            return loss
        self.teacher.eval()
        with torch.no_grad():
            target = logits_of(call(self.teacher, batch))
        assert target is not None
        soft = self.temperature
        distance = F.kl_div(
            F.log_softmax(logits / soft, 1), F.log_softmax(target / soft, 1), reduction="batchmean", log_target=True
        )
        return (1 - self.weight) * loss + self.weight * soft**2 * distance

    def _alone(self, own: Tensor) -> Tensor:
        if self.label_smoothing or self.teacher is not None:
            raise TensorError(
                "smoothed labels or a teacher", "the model computes its own loss", "leave them out, or return logits"
            )
        return own


def own_loss(outputs: Any) -> Tensor | None:
    """The loss that the model computed: its only output, a scalar, or "loss" of a dict."""
    found = outputs.get("loss") if isinstance(outputs, Mapping) else outputs
    return found if isinstance(found, Tensor) and found.ndim == 0 else None


def logits_of(outputs: Any) -> Tensor | None:
    """The logits, one per class and sample, if the model returns them as its only output or as "logits"."""
    found = outputs.get("logits") if isinstance(outputs, Mapping) else outputs
    return found if isinstance(found, Tensor) and found.ndim > 1 else None


def checked_loss(loss: Any) -> Tensor:
    """The result of a loss function, which must be a scalar."""
    if not isinstance(loss, Tensor) or loss.ndim:
        found = f"of shape {tuple(loss.shape)}" if isinstance(loss, Tensor) else f"a {type(loss).__name__}"
        raise TensorError(f"train on a loss that is {found}", "a loss is a tensor without axes", "take the mean")
    return loss

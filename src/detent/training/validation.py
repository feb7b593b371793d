"""The quantized model and the float model of the same weights, side by side on the same batches."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from detent.algorithms.common.floating import only_quantizing
from detent.graph import eval_mode
from detent.progress import count_of, progress
from detent.training.batch import call, size_of
from detent.training.metrics import Metric, answers_of, measured
from detent.training.objective import LossFunction, Objective, checked_loss
from detent.training.processes import Processes

__all__ = ["validate"]


@torch.no_grad()
def validate(
    prepared: nn.Module,
    batches: Iterable[Any],
    processes: Processes | None = None,
    *,
    objective: LossFunction | None = None,
    metrics: Mapping[str, Metric] | None = None,
) -> dict[str, float]:
    """The metrics and the loss of both, and the share of samples on which their predictions agree.

    Keys of a classifier: `quantized.top1`, `quantized.loss`, `float.top1`, `float.loss`, `agreement`, from 0 to 1 but
    for the losses. `metrics` takes the place of `top1`; where there are no classes there is no `agreement`.
    """
    everyone = processes or Processes()
    sums: dict[str, Tensor] = {}
    with eval_mode(prepared), progress("validating", count_of(batches), shown=everyone.first) as bar:
        for batch in batches:
            for name, value in _of_batch(prepared, batch, objective or Objective(), metrics or {}).items():
                added = torch.stack([value * size_of(batch), torch.full_like(value, size_of(batch))])
                sums[name] = sums[name] + added if name in sums else added
            bar.advance()
    totals = everyone.total(torch.stack(list(sums.values())))
    return {name: float(total[0] / total[1]) for name, total in zip(sums, totals, strict=True)}


def _of_batch(
    prepared: nn.Module, batch: Any, objective: LossFunction, metrics: Mapping[str, Metric]
) -> dict[str, Tensor]:
    found: dict[str, Tensor] = {}
    quantized = call(prepared, batch)
    with only_quantizing(prepared, ()):
        reference = call(prepared, batch)
    for kind, outputs in (("quantized", quantized), ("float", reference)):
        loss = checked_loss(objective(outputs, batch)).double()
        values = measured(outputs, batch, metrics)
        found |= {f"{kind}.{name}": value.to(loss.device) for name, value in {**values, "loss": loss}.items()}
    answers, references = answers_of(quantized, batch), answers_of(reference, batch)
    if answers is not None and references is not None:
        found["agreement"] = (answers == references).double().mean()
    return found

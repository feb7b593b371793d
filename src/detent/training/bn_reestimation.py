"""Statistics of batch norms, measured again once the weights stand still (Nagel et al., ICML 2022, arXiv 2203.11086).

The running statistics are of the last steps, with weights of few bits that change from step to step between two codes,
and of images that may be augmented in ways that no image is that comes later. What is deployed has one set of weights.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from detent.graph import FoldedBatchNorm, PreparedModel, call_of, eval_mode
from detent.training.batch import size_of
from detent.training.synced_norms import batch_norms_of, synced_batch_norms

__all__ = ["reestimate_batch_norms"]


@torch.no_grad()
def reestimate_batch_norms(prepared: PreparedModel, batches: Iterable[Any], *, ranks: int = 1) -> None:
    """Set running means and variances to those of `batches`, in any form that `detent.calibrate` takes.

    They are run through the quantized network. Each batch is normalized by its own statistics, as in training;
    quantizers and the rest are in evaluation mode. Batch norms that are folded with frozen statistics keep theirs.
    Nothing else changes. With several processes, all need equally many batches.
    """
    norms = _measured(prepared)
    if not norms:
        return
    before = {norm: _statistics(norm) for norm in norms}
    kept = {norm: (norm.momentum, norm.num_batches_tracked.clone()) for norm in norms}
    sums = {norm: [torch.zeros_like(one, dtype=torch.float64) for one in found] for norm, found in before.items()}
    seen = 0
    with eval_mode(prepared), synced_batch_norms(prepared, ranks):
        _train(prepared, norms)
        try:
            for batch in batches:
                for norm in norms:  # folded weights depend on them: each batch finds them as they are deployed now
                    norm.momentum = 1.0
                    _set(norm, before[norm])
                call = call_of(prepared, batch)
                prepared(*call.args, **call.kwargs)
                size = size_of(batch)
                seen += size
                for norm, (first, second) in sums.items():
                    mean, variance = (value.double() for value in _statistics(norm))
                    first += size * mean
                    second += size * (variance + mean.square())
        finally:
            for norm, (momentum, count) in kept.items():
                norm.momentum = momentum
                norm.num_batches_tracked.copy_(count)
                _set(norm, before[norm])
    if seen:
        for norm, (first, second) in sums.items():
            mean = first / seen
            _set(norm, (mean, (second / seen - mean.square()).clamp_min(0)))


def _measured(prepared: PreparedModel) -> list[Any]:
    """Batch norms that can take their statistics from a batch."""
    folded = [m for m in prepared.modules() if isinstance(m, FoldedBatchNorm)]
    still = [id(m.bn) for m in folded if m.frozen or m.strategy == 1]
    return [norm for norm in batch_norms_of(prepared) if id(norm) not in still]


def _train(prepared: PreparedModel, norms: list[Any]) -> None:
    """Training mode for these batch norms, and for what they are folded into, alone."""
    for norm in norms:
        norm.training = True
    for module in prepared.modules():
        if isinstance(module, FoldedBatchNorm) and any(module.bn is norm for norm in norms):
            module.training = True


def _statistics(norm: Any) -> tuple[Tensor, Tensor]:
    return norm.running_mean.clone(), norm.running_var.clone()


def _set(norm: Any, values: tuple[Tensor, Tensor]) -> None:
    norm.running_mean.copy_(values[0])
    norm.running_var.copy_(values[1])

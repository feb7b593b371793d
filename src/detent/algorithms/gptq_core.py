"""Frantar et al., "GPTQ: Accurate Post-Training Quantization for Generative Pre-trained Transformers", ICLR 2023.

Columns of a weight are quantized one after another; what a column loses is made up for by those that come after it,
by the inverse of the inputs' second moments H = sum x x'. Scales are those that were calibrated, one for each element
as the granularity lays them out, so that groups and the order of columns are independent of each other.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

__all__ = ["gptq_weight"]

_BLOCK = 128


def gptq_weight(
    weight: Tensor,
    gram: Tensor,
    to_grid: Callable[[Tensor, Tensor], Tensor],
    *,
    damping: float = 0.01,
    act_order: bool = True,
) -> Tensor:
    """The quantized weight (outputs, inputs) for inputs whose second moments are `gram` (inputs, inputs).

    `to_grid(values, columns)` puts values (outputs, len(columns)) of the given columns on their grid. With `act_order`
    the columns with the largest inputs come first, while there are most left to make up for them.
    """
    work, h = weight.detach().float().clone(), gram.detach().float().clone()
    dead = h.diagonal() == 0
    h.diagonal()[dead] = 1.0
    work[:, dead] = 0
    order = torch.argsort(h.diagonal(), descending=True) if act_order else torch.arange(h.shape[0], device=h.device)
    work, h = work[:, order], h[order][:, order]
    inverse = _inverse_factor(h, damping)
    result = torch.zeros_like(work)
    for start in range(0, work.shape[1], _BLOCK):
        end = min(start + _BLOCK, work.shape[1])
        block, errors = work[:, start:end].clone(), torch.zeros_like(work[:, start:end])
        factor = inverse[start:end, start:end]
        for column in range(end - start):
            value = block[:, column]
            quantized = to_grid(value.unsqueeze(1), order[start + column : start + column + 1]).squeeze(1)
            result[:, start + column] = quantized
            error = (value - quantized) / factor[column, column]
            block[:, column:] -= error.unsqueeze(1) * factor[column, column:].unsqueeze(0)
            errors[:, column] = error
        work[:, end:] -= errors @ inverse[start:end, end:]
    return result[:, torch.argsort(order)]


def _inverse_factor(h: Tensor, damping: float) -> Tensor:
    """The upper Cholesky factor of the inverse, with as much damping as it takes."""
    mean = h.diagonal().mean()
    for power in range(6):
        damped = h + torch.eye(h.shape[0], device=h.device) * (mean * damping * 10**power)
        factor, fault = torch.linalg.cholesky_ex(damped)
        if int(fault) == 0:
            found, fault = torch.linalg.cholesky_ex(torch.cholesky_inverse(factor), upper=True)
            if int(fault) == 0:
                upper: Tensor = found
                return upper
    return torch.diag(h.diagonal().rsqrt())  # no column makes up for another: rounding to nearest

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
    to_grid: Callable[[Tensor, int], Tensor],
    *,
    damping: float = 0.01,
    act_order: bool = True,
) -> Tensor:
    """The quantized weight (outputs, inputs) for inputs whose second moments are `gram` (inputs, inputs).

    `to_grid(values, column)` puts the values of one column, one for each output, on their grid. With `act_order` the
    columns with the largest inputs come first, while there are most left to make up for them.
    """
    h = gram.detach().float().clone()
    work = weight.detach().float().t().clone()  # by columns: each is read and written as a whole
    dead = h.diagonal() == 0
    h.diagonal()[dead] = 1.0
    work[dead] = 0
    order = torch.argsort(h.diagonal(), descending=True) if act_order else torch.arange(h.shape[0], device=h.device)
    work, h, places = work[order], h[order][:, order], order.tolist()
    inverse = _inverse_factor(h, damping)
    slopes = inverse.diagonal().tolist()
    result = torch.empty_like(work)
    for start in range(0, len(work), _BLOCK):
        end = min(start + _BLOCK, len(work))
        errors = torch.empty_like(work[start:end])
        for column in range(start, end):
            value = work[column]
            result[column] = to_grid(value, places[column])
            error = torch.sub(value, result[column], out=errors[column - start]).div_(slopes[column])
            work[column + 1 : end].addr_(inverse[column, column + 1 : end], error, alpha=-1)
        work[end:] -= inverse[start:end, end:].t() @ errors
    return result[torch.argsort(order)].t()


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

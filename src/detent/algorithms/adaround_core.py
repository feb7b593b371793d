"""Learns which weights to round up: Adam on a soft rounding, with a penalty that grows until the rounding is hard.

The error is divided by that of rounding to nearest, and the penalty by the number of weights, so that one strength of
the penalty suits layers of any size and magnitude.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from detent.quantizers import AdaRound
from detent.quantizers.adaround import annealed_beta, rounding_penalty

__all__ = ["learn_rounding", "neighbors"]

_DECIDED = 1e4  # far outside of where the sigmoid is soft


@torch.no_grad()
def neighbors(quantizer: AdaRound, weight: Tensor) -> tuple[Tensor, Tensor]:
    """The grid points below and above each weight. Soft rounding interpolates between them."""
    training, kept = quantizer.training, quantizer.rounding.detach().clone()
    quantizer.eval()
    found = []
    for side in (-_DECIDED, _DECIDED):
        quantizer.rounding.fill_(side)
        found.append(quantizer(weight))
    quantizer.rounding.copy_(kept)
    quantizer.train(training)
    return found[0], found[1]


def learn_rounding(
    quantizer: AdaRound,
    weight: Tensor,
    loss: Callable[[Tensor], Tensor],
    *,
    steps: int = 2000,
    rate: float = 3e-2,
    penalty: float = 30.0,
    warm_up: float = 0.2,
) -> None:
    """Set `quantizer.rounding` to minimize `loss(quantized weight)`, with every weight rounded either up or down."""
    lower, upper = neighbors(quantizer, weight)
    span = upper - lower
    with torch.no_grad():
        quantizer.rounding.zero_()
        nearest = (quantizer.soft_rounding(weight) >= 0.5).to(weight.dtype)
        start = float(loss(lower + nearest * span))
    if not start > 0:
        return
    asked = quantizer.rounding.requires_grad
    quantizer.rounding.requires_grad_(True)
    optimizer = torch.optim.Adam([quantizer.rounding], lr=rate)
    with torch.enable_grad():
        for step in range(steps):
            optimizer.zero_grad()
            up = quantizer.soft_rounding(weight)
            total = loss(lower + up * span) / start
            beta = annealed_beta(step, steps, warm_up=warm_up)
            if beta is not None:
                total = total + penalty / weight.numel() * rounding_penalty(up, beta)
            total.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
    quantizer.rounding.grad = None
    quantizer.rounding.requires_grad_(asked)

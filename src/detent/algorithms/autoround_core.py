"""Cheng et al., "Optimize Weight Rounding via Signed Gradient Descent for the Quantization of LLMs", EMNLP 2024.

    Q(w) = t clamp(round(w / t + v), lo, hi)    t = s f    v in [-1/2, 1/2]    f in [1/2, 1]

Every step moves v and f by the same amount against the sign of their gradients (round has the slope 1), by less and
less; the best of all steps is kept. The paper's error is that of a block's output.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

__all__ = ["signed_rounding"]


def signed_rounding(
    weight: Tensor,
    scale: Tensor,
    ends: tuple[Tensor, Tensor],
    loss: Callable[[Tensor], Tensor],
    *,
    snap: Callable[[Tensor], Tensor] = lambda scale: scale,
    steps: int = 200,
    rate: float | None = None,
) -> tuple[Tensor, Tensor]:
    """The weight on its grid with the least `loss`, and the scale of that grid.

    `scale` and `ends` (lowest and highest code, counted from the zero point) broadcast against `weight`. The rate of
    the first step defaults to 1 / steps. It starts from rounding to nearest, so the result is never worse than that.

    >>> both = lambda w: (w.sum() - 0.8) ** 2                  # two equal inputs: 0.4 + 0.4 is nearer to 1 than to 0
    >>> one = torch.tensor(1.0)
    >>> found, _ = signed_rounding(torch.tensor([0.4, 0.38]), one, (-4 * one, 3 * one), both, steps=20)
    >>> sorted(round(value, 1) for value in found.tolist())
    [0.0, 0.8]
    """
    rate = 1 / steps if rate is None else rate
    moved, factor = torch.zeros_like(weight), torch.ones_like(scale)
    best, least = (weight, scale), float("inf")
    for step in range(steps + 1):
        v, f = moved.requires_grad_(), factor.requires_grad_()
        with torch.enable_grad():
            t = scale * f
            t = t + (snap(t.detach()) - t.detach())
            code = weight / t + v
            value = torch.clamp(code + (code.round() - code).detach(), *ends) * t
            error = loss(value)
            gradients = torch.autograd.grad(error, (v, f))
        if (now := float(error.detach())) < least:
            best, least = (value.detach(), t.detach()), now
        by = rate * (1 - step / steps)
        moved = (v - by * gradients[0].sign()).clamp(-0.5, 0.5).detach()
        factor = (f - by * gradients[1].sign()).clamp(0.5, 1).detach()
    return best

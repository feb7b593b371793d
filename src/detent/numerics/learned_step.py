"""The learned scale, and its gradient scaling."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

__all__ = ["learned_step", "scale_gradient"]

_TINY = torch.finfo(torch.float32).tiny


def learned_step(raw: Tensor, factor: float) -> Tensor:
    """The magnitude of a learned scale, never 0, whose gradient is multiplied by `factor` on the way back.

    >>> s = torch.tensor(-3.0, requires_grad=True)
    >>> step = learned_step(s, 0.5)
    >>> step.backward()
    >>> step.item(), s.grad.item()
    (3.0, -0.5)
    """
    out: Tensor = _LearnedStep.apply(raw, factor)  # type: ignore[no-untyped-call]
    return out


class _LearnedStep(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, raw: Tensor, factor: float) -> Tensor:
        ctx.save_for_backward(raw)
        ctx.factor = factor
        return raw.abs().clamp_min(_TINY)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, None]:
        (raw,) = ctx.saved_tensors
        return torch.where(raw.abs() >= _TINY, dy * ctx.factor * raw.sgn(), 0.0), None


def scale_gradient(x: Tensor, factor: float) -> Tensor:
    """`x` itself, whose gradient is multiplied by `factor` on the way back.

    >>> s = torch.tensor(3.0, requires_grad=True)
    >>> scale_gradient(s, 0.5).backward()
    >>> s.grad.item()
    0.5
    """
    out: Tensor = _ScaleGradient.apply(x, factor)  # type: ignore[no-untyped-call]
    return out


class _ScaleGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, factor: float) -> Tensor:
        ctx.factor = factor
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, None]:
        return dy * ctx.factor, None

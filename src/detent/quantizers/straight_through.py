"""One value in the forward pass, the gradient of another in the backward pass."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

__all__ = ["straight_through"]


def straight_through(value: Tensor, surrogate: Tensor) -> Tensor:
    """`value`, bit for bit, with the gradient going to `surrogate`.

    The usual `surrogate + (value - surrogate).detach()` is not `value` where the difference rounds.

    >>> x = torch.tensor(0.3, requires_grad=True)
    >>> y = straight_through(torch.round(x.detach()), x)
    >>> y.item()
    0.0
    >>> y.backward()
    >>> x.grad.item()
    1.0
    """
    out: Tensor = _StraightThrough.apply(value, surrogate)  # type: ignore[no-untyped-call]
    return out


class _StraightThrough(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, value: Tensor, surrogate: Tensor) -> Tensor:  # noqa: ARG004
        return value.clone()

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[None, Tensor]:  # noqa: ARG004
        return None, dy

"""Decomposes gated linear units, for which ONNX has no operator."""

from __future__ import annotations

import torch
from torch import fx

__all__ = ["gated"]


def gated(input: fx.Proxy, dim: int = -1) -> fx.Proxy:  # noqa: A002 - as torch names it
    """`F.glu`: one half times the sigmoid of the other."""
    halves = torch.chunk(input, 2, dim)  # type: ignore[arg-type]
    made: fx.Proxy = halves[0] * torch.sigmoid(halves[1])  # type: ignore[assignment]
    return made

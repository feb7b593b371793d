"""Badri and Shaji, "Half-Quadratic Quantization of Large Machine Learning Models", 2023: no data, only the weight.

    min |w - Q(w)|^p, p < 1:    e <- shrink(w - Q(w))    then the qparams with the least (w - e - Q(w))^2

`shrink(e) = sign(e) max(|e| - |e|^(p-1) / b, 0)`, with `b` growing. A few weights that are far off count less than
in squares. Errors are in steps of the first scale, so that one `b` suits weights of any size. The paper moves a real
zero point and leaves the scale; here both move, and zero points stay the integers that files hold.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

__all__ = ["half_quadratic", "shrink"]

_GROWTH = 1.01


def shrink(error: Tensor, norm: float, strength: float) -> Tensor:
    """The error minus the part that the norm tolerates.

    >>> shrink(torch.tensor([0.0, 0.1, -4.0]), 0.5, 2.0).tolist()
    [0.0, 0.0, -3.75]
    """
    size = error.abs()
    return error.sign() * (size - size.clamp_min(1e-9).pow(norm - 1) / strength).clamp_min(0)


def half_quadratic(
    rows: Tensor,
    scale: Tensor,
    zero: Tensor,
    ends: tuple[int, int],
    *,
    symmetric: bool,
    snap: Callable[[Tensor], Tensor] = lambda scale: scale,
    norm: float = 0.7,
    strength: float = 10.0,
    steps: int = 20,
) -> tuple[Tensor, Tensor]:
    """Scale and zero point of each row (rows, 1) with the least `sum |w - Q(w)| ** norm` on the way; never a worse one.

    `ends` are the least and greatest code; `snap` gives the nearest scales that can be stored.

    >>> row = torch.tensor([[0.5, -0.5, 0.5, -0.5, 3.0]])      # three steps up: 3.0 costs all the others
    >>> scale, _ = half_quadratic(row, torch.tensor([[1.0]]), torch.tensor([[0.0]]), (-4, 3), symmetric=True)
    >>> round(scale.item(), 2)
    1.0
    """
    best, unit = (scale, zero), scale
    least = _cost(rows, scale, zero, ends, unit, norm)
    for _ in range(steps):
        code = _codes(rows, scale, zero, ends)
        error = shrink((rows - (code - zero) * scale) / unit, norm, strength) * unit
        wanted = rows - error
        if not symmetric:
            zero = (code - wanted / scale).mean(1, keepdim=True).round().clamp(*ends)
        levels = code - zero
        power = levels.square().sum(1, keepdim=True)
        fitted = (levels * wanted).sum(1, keepdim=True) / power.clamp_min(1e-12)
        scale = snap(torch.where((power > 0) & (fitted > 0), fitted, scale))
        cost = _cost(rows, scale, zero, ends, unit, norm)
        better = cost < least
        least = torch.where(better, cost, least)
        best = torch.where(better, scale, best[0]), torch.where(better, zero, best[1])
        strength *= _GROWTH
    return best


def _codes(rows: Tensor, scale: Tensor, zero: Tensor, ends: tuple[int, int]) -> Tensor:
    return (torch.round(rows / scale) + zero).clamp(*ends)


def _cost(rows: Tensor, scale: Tensor, zero: Tensor, ends: tuple[int, int], unit: Tensor, norm: float) -> Tensor:
    kept = (_codes(rows, scale, zero, ends) - zero) * scale
    return ((rows - kept) / unit).abs().pow(norm).sum(1, keepdim=True)

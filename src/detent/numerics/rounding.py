"""The eight ways a real number becomes an integer, exact on every float32 and float64."""

from __future__ import annotations

from enum import Enum

import torch
from torch import Tensor

__all__ = ["Rounding", "round_to_integer"]


class Rounding(str, Enum):  # noqa: UP042, as text it is "Rounding.floor"
    """How ties (and, for the last three, everything) are rounded.

    | mode             | -2.5 | -1.5 | -0.5 | 0.5 | 1.5 | 2.5 | also known as                        |
    |------------------|------|------|------|-----|-----|-----|--------------------------------------|
    | half_even        |  -2  |  -2  |   0  |  0  |  2  |  2  | IEEE nearest, `torch.round`          |
    | half_up          |  -2  |  -1  |   0  |  1  |  2  |  3  | ties to +inf, DPU activations        |
    | half_down        |  -3  |  -2  |  -1  |  0  |  1  |  2  | ties to -inf                         |
    | half_away        |  -3  |  -2  |  -1  |  1  |  2  |  3  | C `round`, Vitis "std_round"         |
    | half_toward_zero |  -2  |  -1  |   0  |  0  |  1  |  2  | Vitis "half_down"                    |
    | floor            |  -3  |  -2  |  -1  |  0  |  1  |  2  |                                      |
    | ceil             |  -2  |  -1  |   0  |  1  |  2  |  3  |                                      |
    | stochastic       | down or up, with the chance that makes the mean exact               |
    """

    HALF_EVEN = "half_even"
    HALF_UP = "half_up"
    HALF_DOWN = "half_down"
    HALF_AWAY = "half_away"
    HALF_TOWARD_ZERO = "half_toward_zero"
    FLOOR = "floor"
    CEIL = "ceil"
    STOCHASTIC = "stochastic"

    def without_chance(self) -> Rounding:
        """Itself, and nearest for stochastic: for what is deployed, and for comparing scales."""
        return Rounding.HALF_EVEN if self is Rounding.STOCHASTIC else self


def round_to_integer(x: Tensor, mode: Rounding = Rounding.HALF_EVEN) -> Tensor:
    """Integers (in the dtype of `x`) next to `x`.

    Ties are decided on `x - trunc(x)`, which floating point computes without error. The usual
    `floor(x + 0.5)` does not: it rounds 0.49999997 to 1 and every odd number above 2**23 up.

    >>> round_to_integer(torch.tensor([-1.5, -0.5, 0.49999997, 2.5]), Rounding.HALF_AWAY).tolist()
    [-2.0, -1.0, 0.0, 3.0]
    """
    if mode is Rounding.HALF_EVEN:
        return torch.round(x)
    if mode is Rounding.FLOOR:
        return torch.floor(x)
    if mode is Rounding.CEIL:
        return torch.ceil(x)
    whole = torch.trunc(x)
    part = x - whole
    if mode is Rounding.HALF_UP:
        return whole + (part >= 0.5).to(x.dtype) - (part < -0.5).to(x.dtype)
    if mode is Rounding.HALF_DOWN:
        return whole + (part > 0.5).to(x.dtype) - (part <= -0.5).to(x.dtype)
    if mode is Rounding.HALF_AWAY:
        return whole + (part >= 0.5).to(x.dtype) - (part <= -0.5).to(x.dtype)
    if mode is Rounding.HALF_TOWARD_ZERO:
        return whole + (part > 0.5).to(x.dtype) - (part < -0.5).to(x.dtype)
    return whole + torch.sign(part) * (torch.rand_like(x) < part.abs()).to(x.dtype)

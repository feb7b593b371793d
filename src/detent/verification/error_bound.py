"""Values and bounds on their float32 round-off."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

__all__ = ["FUNCTION", "UNIT", "ErrorBound"]

UNIT = 2.0**-24
"""What one rounding to float32 is off by at most, relatively."""

FUNCTION = 16 * UNIT
"""Two computations of an exp, erf or tanh together, of the largest number on the way: the vector functions of torch and
of the engines are off by 1 to 4 units in the last place each."""


class ErrorBound(NamedTuple):
    """The values of one computation, and how far those of another may be from each; None: not at all."""

    value: Tensor
    error: Tensor | None = None

    @property
    def spread(self) -> Tensor:
        """The error, zeros if there is none."""
        return torch.zeros_like(self.value) if self.error is None else self.error

"""Values and bounds on their float32 round-off."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from detent.ir.network import Op

__all__ = [
    "FUNCTION",
    "UNIT",
    "ErrorBound",
    "Errors",
    "FloatKernel",
    "Inputs",
    "Rule",
    "is_certain",
    "is_chosen_otherwise",
    "of_finite",
    "unknown_error",
]

UNIT = 2.0**-24
"""What one rounding to float32 is off by at most, relatively."""

FUNCTION = 16 * UNIT
"""Two computations of an exp, erf or tanh together, of the largest number on the way: the vector functions of torch and
of the engines are off by 1 to 4 units in the last place each."""

_UNKNOWN = 2.0**-16
"""Of the largest number, where nothing is known of an operation: 256 roundings of it."""


class ErrorBound(NamedTuple):
    """The values of one computation, and how far those of another may be from each; None: not at all. The error of
    whole numbers and truth values is zero or infinite."""

    value: Tensor
    error: Tensor | None = None

    @property
    def spread(self) -> Tensor:
        """The error; zeros if there is none."""
        return torch.zeros_like(self.value) if self.error is None else self.error


FloatKernel = Callable[..., Any]
"""Computes an operation: a tensor for each input, None for one that is absent."""
Inputs = Sequence[ErrorBound | None]
Errors = Sequence[Tensor | None] | None
"""One for each output, None if it has no error; None altogether if nothing is known."""
Rule = Callable[[Op, FloatKernel, Inputs, tuple[Tensor, ...]], Errors]
"""From an operation, its kernel, its inputs, and the values that the kernel gives for them."""


def is_certain(inputs: Inputs) -> bool:
    return all(each is None or each.error is None for each in inputs)


def is_chosen_otherwise(inputs: Inputs) -> bool:
    """Whether an index or a condition among the inputs may differ."""
    return any(
        each is not None and each.error is not None and not each.value.is_floating_point() and bool(each.error.any())
        for each in inputs
    )


def unknown_error(value: Tensor, inputs: Inputs) -> Tensor:
    """The tolerance for an operation without a rule."""
    if not value.is_floating_point():
        return torch.full(value.shape, 0.0 if is_certain(inputs) else torch.inf)
    largest = float(torch.where(value.isfinite(), value, 0.0).abs().amax()) if value.numel() else 0.0
    return torch.full_like(value, _UNKNOWN * largest if is_certain(inputs) else torch.inf)


def of_finite(error: Tensor, value: Tensor) -> Tensor:
    """The error of finite values: infinities (a mask) and what is no number are the same in every order."""
    return torch.where(value.isfinite(), error.to(value.dtype), 0.0)

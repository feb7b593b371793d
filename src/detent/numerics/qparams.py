"""The scale and zero point of a tensor."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from detent.errors import RangeError, TensorError

__all__ = ["QParams"]


@dataclass(frozen=True, eq=False)
class QParams:
    """`real = scale * (code - zero_point)`, both of the shape the granularity gives.

    Invariants: scales are finite and positive; zero points are integers (int64), so real zero has a code. Schemes with
    an offset have `real = scale * code - offset`, and zero points of 0.
    """

    scale: Tensor
    zero_point: Tensor
    offset: Tensor | None = None

    def __post_init__(self) -> None:
        if not self.scale.is_floating_point():
            raise TensorError(f"a scale of dtype {self.scale.dtype}", "scales are real numbers", "give a float tensor")
        if self.zero_point.is_floating_point():
            raise TensorError(
                f"a zero point of dtype {self.zero_point.dtype}", "zero points are codes", "round it and give integers"
            )
        if self.zero_point.shape != self.scale.shape:
            raise TensorError(
                f"scale of shape {tuple(self.scale.shape)}",
                f"zero point of shape {tuple(self.zero_point.shape)}",
                "give both the shape of the granularity",
            )
        if torch.compiler.is_compiling() or self.scale.is_meta:
            return  # what follows looks at numbers, which a compiled graph cannot, and which a meta tensor has not
        if not (torch.isfinite(self.scale) & (self.scale > 0)).all():
            raise RangeError(
                f"scale {self.scale.flatten()[:8].tolist()}", "not all finite and positive", "check the observed range"
            )

    @classmethod
    def symmetric(cls, scale: Tensor) -> QParams:
        """QParams with zero points of 0."""
        return cls(scale, torch.zeros(scale.shape, dtype=torch.int64, device=scale.device))

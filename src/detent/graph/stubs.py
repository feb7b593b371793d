"""Marks the quantized part of a model: from a `QuantStub` to a `DeQuantStub`."""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor, nn

__all__ = ["DeQuantStub", "QuantStub"]


class QuantStub(nn.Module):
    """The start of the quantized part. A model without a stub is quantized as a whole. Returns its input."""

    kind: ClassVar[str] = "quant_stub"

    def forward(self, x: Tensor) -> Tensor:
        return x


class DeQuantStub(nn.Module):
    """The end of the quantized part. Returns its input."""

    kind: ClassVar[str] = "dequant_stub"

    def forward(self, x: Tensor) -> Tensor:
        return x

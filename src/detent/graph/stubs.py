"""Marks the quantized part of a model: from a `QuantStub` to a `DeQuantStub`."""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor, nn

__all__ = ["DeQuantStub", "QuantStub"]


class QuantStub(nn.Module):
    """Quantization starts here. Where a model has no stub, all of it is quantized. Does nothing to its input."""

    kind: ClassVar[str] = "quant_stub"

    def forward(self, x: Tensor) -> Tensor:
        return x


class DeQuantStub(nn.Module):
    """Quantization ends here. Does nothing to its input."""

    kind: ClassVar[str] = "dequant_stub"

    def forward(self, x: Tensor) -> Tensor:
        return x

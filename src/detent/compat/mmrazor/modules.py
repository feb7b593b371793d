"""What MMRazor's users derive modules and fake quantizers from, and LSQ's fake quantizer, which is Detent's own."""

from __future__ import annotations

from abc import abstractmethod

import torch
from torch import Tensor, nn

from detent.quantizers import Lsq as LearnableFakeQuantize

__all__ = ["BaseModule", "FXFloatFunctional", "FakeQuantizeBase", "LearnableFakeQuantize"]

BaseModule = nn.Module


class FakeQuantizeBase(nn.Module):
    """What a user's own fake quantizer is derived from; its tensors are `scale` and `zero_point`.

    It is made with the config's observer, as a class, and with what torch gives observers (`dtype`, `qscheme`,
    `quant_min`, ...). Both tensors have their final shape before anything runs: (1,), or one for each channel. What the
    observer measured is copied into them, and `enable_param_learning`, or else `disable_observer`, is called if there
    is such a method; only after that is `forward` called.
    """

    scale: Tensor
    zero_point: Tensor
    fake_quant_enabled: Tensor
    observer_enabled: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("fake_quant_enabled", torch.tensor([1], dtype=torch.uint8))
        self.register_buffer("observer_enabled", torch.tensor([1], dtype=torch.uint8))

    @abstractmethod
    def forward(self, X: Tensor) -> Tensor:  # noqa: N803, torch's name
        """`X` on its grid."""

    @abstractmethod
    def calculate_qparams(self) -> tuple[Tensor, Tensor]:
        """The scale and zero point to deploy."""

    def enable_fake_quant(self, enabled: bool = True) -> None:
        self.fake_quant_enabled[0] = int(enabled)

    def disable_fake_quant(self) -> None:
        self.enable_fake_quant(False)

    def enable_observer(self, enabled: bool = True) -> None:
        self.observer_enabled[0] = int(enabled)

    def disable_observer(self) -> None:
        self.enable_observer(False)


class FXFloatFunctional(nn.Module):
    """The methods of torch's `FloatFunctional` as plain functions, whose operands and results are quantized."""

    def forward(self, x: Tensor) -> Tensor:
        raise NotImplementedError(f"call add, mul, cat, ... of FXFloatFunctional, not itself, with {tuple(x.shape)}")

    def add(self, x: Tensor, y: Tensor) -> Tensor:
        return torch.add(x, y)

    def add_scalar(self, x: Tensor, y: float) -> Tensor:
        return torch.add(x, y)

    def mul(self, x: Tensor, y: Tensor) -> Tensor:
        return torch.mul(x, y)

    def mul_scalar(self, x: Tensor, y: float) -> Tensor:
        return torch.mul(x, y)

    def cat(self, x: list[Tensor], dim: int = 0) -> Tensor:
        return torch.cat(x, dim=dim)

    def add_relu(self, x: Tensor, y: Tensor) -> Tensor:
        return torch.relu(torch.add(x, y))

    def matmul(self, x: Tensor, y: Tensor) -> Tensor:
        return torch.matmul(x, y)

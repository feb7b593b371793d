# ruff: noqa: A002 (the arguments have the names that callers give them by)
"""Vitis AI's modules for operators, under the names of `pytorch_nndct.nn.modules.functional`.

Operators need not be modules here; models that were written so are quantized just the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

__all__ = [
    "Add",
    "AddScalar",
    "Cat",
    "Clamp",
    "Const",
    "Interpolate",
    "Matmul",
    "Max",
    "Mean",
    "Mul",
    "Pad",
    "Softmax",
    "Sqrt",
    "Sub",
    "Sum",
    "Transpose",
    "Upsample",
]

_Axes = int | tuple[int, ...]


class Add(nn.Module):
    def forward(self, input: Tensor, other: Tensor, alpha: float = 1) -> Tensor:
        return torch.add(input, other, alpha=alpha)


class Sub(nn.Module):
    def forward(self, input: Tensor, other: Tensor, alpha: float = 1) -> Tensor:
        return torch.sub(input, other, alpha=alpha)


class AddScalar(nn.Module):
    def forward(self, x: Tensor, y: float) -> Tensor:
        return torch.add(x, y)


class Mul(nn.Module):
    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return torch.mul(x, y)


class Matmul(nn.Module):
    def forward(self, input: Tensor, other: Tensor) -> Tensor:
        return torch.matmul(input, other)


class Cat(nn.Module):
    def forward(self, x: Sequence[Tensor], dim: int = 0) -> Tensor:
        return torch.cat(tuple(x), dim=dim)


class Max(nn.Module):
    def forward(self, input: Tensor, dim: int, keepdim: bool = False) -> Any:
        return torch.max(input, dim, keepdim)


class Sum(nn.Module):
    def forward(self, input: Tensor, dim: _Axes, keepdim: bool = False) -> Tensor:
        return torch.sum(input, dim, keepdim)


class Mean(nn.Module):
    def forward(self, x: Tensor, dim: _Axes, keepdim: bool = False) -> Tensor:
        return torch.mean(x, dim, keepdim)


class Interpolate(nn.Module):
    def forward(
        self,
        input: Tensor,
        size: Any = None,
        scale_factor: Any = None,
        mode: str = "nearest",
        align_corners: bool | None = None,
        recompute_scale_factor: bool | None = None,
    ) -> Tensor:
        return F.interpolate(input, size, scale_factor, mode, align_corners, recompute_scale_factor)


class Upsample(nn.Module):
    def forward(
        self,
        input: Tensor,
        size: Any = None,
        scale_factor: Any = None,
        mode: str = "nearest",
        align_corners: bool | None = None,
    ) -> Tensor:
        return F.interpolate(input, size, scale_factor, mode, align_corners)


class Pad(nn.Module):
    def forward(self, input: Tensor, pad: Sequence[int], mode: str = "constant", value: float = 0) -> Tensor:
        return F.pad(input, tuple(pad), mode, value)


class Softmax(nn.Module):
    def forward(self, input: Tensor, dim: int | None = None) -> Tensor:
        return F.softmax(input, dim)


class Clamp(nn.Module):
    def forward(self, input: Tensor, min: float | None = None, max: float | None = None) -> Tensor:
        return torch.clamp(input, min, max)


class Const(nn.Module):
    value: Tensor

    def __init__(self, value: Any):
        super().__init__()
        self.register_buffer("value", torch.as_tensor(value))

    def forward(self) -> Tensor:
        return self.value


class Transpose(nn.Module):
    def forward(self, input: Tensor, dim0: int, dim1: int) -> Tensor:
        return torch.transpose(input, dim0, dim1)


class Sqrt(nn.Module):
    def forward(self, input: Tensor) -> Tensor:
        return torch.sqrt(input)

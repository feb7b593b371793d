"""Building blocks of several networks."""

from __future__ import annotations

from typing import TypeVar

from torch import nn

__all__ = ["conv_norm", "divisible", "initialized"]

Net = TypeVar("Net", bound=nn.Module)


def conv_norm(
    inputs: int,
    outputs: int,
    kernel: int,
    *,
    stride: int = 1,
    groups: int = 1,
    activation: type[nn.Module] | None = nn.ReLU,
) -> nn.Sequential:
    """A convolution "0" that keeps the size at stride 1, its batch norm "1", and an activation "2"."""
    layers: list[nn.Module] = [
        nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, groups=groups, bias=False),
        nn.BatchNorm2d(outputs),
    ]
    return nn.Sequential(*layers, *([] if activation is None else [activation()]))


def divisible(channels: float, by: int = 8) -> int:
    """The nearest multiple, or the next larger one if that would lose more than a tenth.

    >>> divisible(33), divisible(12)
    (32, 16)
    """
    rounded = max(by, int(channels + by / 2) // by * by)
    return rounded if rounded >= 0.9 * channels else rounded + by


def initialized(net: Net) -> Net:
    """Convolutions as He et al. draw them for ReLUs."""
    for module in net.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
            if module.bias is not None:
                nn.init.zeros_(module.bias)
    return net

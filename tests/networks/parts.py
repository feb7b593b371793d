"""What the networks of the tests are made of."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TypeVar

from torch import nn

Activation = Callable[[], nn.Module]
RELU: Activation = partial(nn.ReLU, inplace=True)
RELU6: Activation = partial(nn.ReLU6, inplace=True)
SILU: Activation = partial(nn.SiLU, inplace=True)
HARDSWISH: Activation = partial(nn.Hardswish, inplace=True)

CONVS = (nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.ConvTranspose2d)
BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)

Net = TypeVar("Net", bound=nn.Module)


def lively(net: Net) -> Net:
    """`net` with random numbers in place of the defaults that would hide a mistake.

    A fresh batch norm is the identity, so a wrong folding of it changes nothing; and torch's default conv weights
    shrink the signal layer by layer, until the logits are the bias of the last layer whatever the input. The norm
    that ends a residual branch (`last_norm` of its block) is small, or the signal would grow by 1.4 a block.
    """
    for module in net.modules():
        if isinstance(module, CONVS):
            nn.init.kaiming_normal_(module.weight, nonlinearity="relu")
        if isinstance(module, (*BATCH_NORMS, nn.LayerNorm)):
            nn.init.uniform_(module.weight, 0.5, 1.5)
            nn.init.normal_(module.bias, std=0.1)
        if isinstance(module, BATCH_NORMS):
            nn.init.normal_(module.running_mean, std=0.1)
            nn.init.uniform_(module.running_var, 0.5, 1.5)
    for module in net.modules():
        if hasattr(module, "last_norm"):
            nn.init.uniform_(module.get_submodule(module.last_norm).weight, 0.1, 0.5)
    return net


def conv_bn(
    inputs: int,
    outputs: int,
    kernel: int = 3,
    *,
    stride: int = 1,
    groups: int = 1,
    act: Activation | None = RELU,
    eps: float = 1e-5,
) -> nn.Sequential:
    """Conv "0", batch norm "1" and, unless None, activation "2"; the size is kept at stride 1."""
    conv = nn.Conv2d(inputs, outputs, kernel, stride, padding=kernel // 2, groups=groups, bias=False)
    layers: list[nn.Module] = [conv, nn.BatchNorm2d(outputs, eps=eps)]
    return nn.Sequential(*layers, *([act()] if act else []))


def divisible(channels: float, divisor: int = 8) -> int:
    """The multiple of `divisor` nearest to `channels`, the next one where that loses more than a tenth."""
    nearest = max(divisor, int(channels + divisor / 2) // divisor * divisor)
    return nearest + divisor if nearest < 0.9 * channels else nearest

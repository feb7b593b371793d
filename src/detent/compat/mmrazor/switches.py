"""What loops turn on and off by `runner.model.apply(...)`.

A fake quantizer of one's own has these switches as methods. Detent's quantizers have phases in their place: ranges
that follow the data do so in training mode.
"""

from __future__ import annotations

from torch import nn

from detent.compat.mmrazor.modules import FakeQuantizeBase
from detent.graph import FoldedBatchNorm
from detent.quantizers import Quantizer

__all__ = [
    "disable_observer",
    "enable_fake_quant",
    "enable_observer",
    "enable_param_learning",
    "enable_static_estimate",
    "enable_val",
    "freeze_bn_stats",
]


def enable_param_learning(module: nn.Module) -> None:
    """Scales are learned, and not measured."""
    _switch(module, "enable_param_learning")


def enable_static_estimate(module: nn.Module) -> None:
    """Scales are measured, and not learned."""
    _switch(module, "enable_static_estimate")


def enable_val(module: nn.Module) -> None:
    """Scales stand still."""
    _switch(module, "enable_val")


def enable_fake_quant(module: nn.Module) -> None:
    """Tensors are quantized."""
    _switch(module, "enable_fake_quant")


def enable_observer(module: nn.Module) -> None:
    """Ranges follow the data, where they do."""
    _switch(module, "enable_observer")
    if isinstance(module, Quantizer) and module.moves:
        module.train()


def disable_observer(module: nn.Module) -> None:
    """Ranges stand still."""
    _switch(module, "disable_observer")
    if isinstance(module, Quantizer) and module.moves:
        module.eval()


def freeze_bn_stats(module: nn.Module) -> None:
    """Batch norms keep their statistics."""
    if isinstance(module, FoldedBatchNorm):
        module.frozen = True
    elif isinstance(module, (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)):
        module.eval()


def _switch(module: nn.Module, name: str) -> None:
    if isinstance(module, FakeQuantizeBase) and hasattr(module, name):
        getattr(module, name)()

"""Copies of tensors, to undo changes."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn

__all__ = ["Snapshot"]


class Snapshot:
    """Copies of tensors. `restore` writes them back in place, so parameters keep their identity."""

    def __init__(self, tensors: Iterable[Tensor]):
        self._kept = {tensor: tensor.detach().clone() for tensor in tensors}

    @classmethod
    def of(cls, module: nn.Module) -> Snapshot:
        """Every parameter and buffer of a module."""
        return cls([*module.parameters(), *module.buffers()])

    def restore(self) -> None:
        with torch.no_grad():
            for tensor, value in self._kept.items():
                tensor.copy_(value)

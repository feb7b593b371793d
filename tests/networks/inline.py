"""A network written in one line: its parts, and what forward does with them."""

from __future__ import annotations

from torch import nn


class Net(nn.Module):
    """A network from its parts and what forward does with them."""

    def __init__(self, forward, **parts):
        super().__init__()
        for name, part in parts.items():
            setattr(self, name, part)
        self._forward = forward

    def forward(self, x, y=None):
        return self._forward(self, x) if y is None else self._forward(self, x, y)

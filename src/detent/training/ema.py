"""An exponential moving average of a model's parameters, kept in addition to the trained ones."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn

__all__ = ["Ema"]


class Ema:
    """`average = decay * average + (1 - decay) * parameter` after each step; buffers are not averaged.

    In the first steps the decay is `(1 + n) / (10 + n)` if that is less, so that the random initial values fade
    quickly.
    """

    def __init__(self, model: nn.Module, decay: float):
        self.model, self.decay, self.updates = model, decay, 0
        self._average = {name: p.detach().clone() for name, p in model.named_parameters()}

    @torch.no_grad()
    def update(self) -> None:
        """Add the current parameters to the averages."""
        decay = min(self.decay, (1 + self.updates) / (10 + self.updates))
        self.updates += 1
        for name, parameter in self.model.named_parameters():
            # Scales are NaN until they are measured; an average begins with the first number there is.
            average = torch.where(torch.isnan(self._average[name]), parameter, self._average[name])
            self._average[name].copy_(average.lerp_(parameter, 1 - decay))

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """Inside the block the model has the averaged parameters; afterwards its own again."""
        own = {name: p.detach().clone() for name, p in self.model.named_parameters()}
        self._copy(self._average)
        try:
            yield
        finally:
            self._copy(own)

    def state_dict(self) -> dict[str, Tensor]:
        return dict(self._average)

    def load_state_dict(self, state: Mapping[str, Tensor], updates: int) -> None:
        if type(updates) is not int or updates < 0:
            raise ValueError(f"{updates!r} updates of an average")
        self.updates = updates
        for name, average in self._average.items():
            average.copy_(state[name])

    @torch.no_grad()
    def _copy(self, values: Mapping[str, Tensor]) -> None:
        for name, parameter in self.model.named_parameters():
            parameter.copy_(values[name])

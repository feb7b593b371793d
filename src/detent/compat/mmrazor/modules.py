"""What MMRazor's users derive observers and fake quantizers from, and the two of LSQ, which are Detent's own."""

from __future__ import annotations

from abc import abstractmethod

import torch
from torch import Tensor, nn

from detent.numerics import Scheme, choose_qparams
from detent.observers import Lsq as LSQObserver
from detent.observers.ranks import over_ranks
from detent.quantizers import Lsq as LearnableFakeQuantize

__all__ = [
    "BaseModule",
    "FakeQuantizeBase",
    "LSQObserver",
    "LSQPerChannelObserver",
    "LearnableFakeQuantize",
    "MinMaxObserver",
    "sync_tensor",
]

BaseModule = nn.Module
LSQPerChannelObserver = LSQObserver  # how many scales there are is said by the scheme it is given


def sync_tensor(tensor: Tensor) -> None:
    """The mean over all processes, in place."""
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        tensor.copy_(over_ranks(tensor, "sum") / torch.distributed.get_world_size())


class MinMaxObserver(nn.Module):
    """Running minimum and maximum of what it sees; derive from it and override `forward` or `calculate_qparams`.

    It is told its `scheme`, of which `quant_min` and `quant_max` are the ends.
    """

    min_val: Tensor
    max_val: Tensor

    def __init__(self, *, scheme: Scheme) -> None:
        super().__init__()
        self.scheme = scheme
        self.quant_min, self.quant_max = scheme.grid.qmin, scheme.grid.qmax
        self.register_buffer("min_val", torch.tensor(float("inf")))
        self.register_buffer("max_val", torch.tensor(float("-inf")))

    def forward(self, x_orig: Tensor) -> Tensor:
        x = x_orig.detach()
        low, high = (self.scheme.granularity.reduce(x, reduction) for reduction in (torch.amin, torch.amax))
        self.min_val, self.max_val = torch.minimum(low, self.min_val), torch.maximum(high, self.max_val)
        return x_orig

    def calculate_qparams(self) -> tuple[Tensor, Tensor]:
        """Scale and zero point."""
        found = choose_qparams(self.min_val, self.max_val, self.scheme)
        return found.scale, found.zero_point


class FakeQuantizeBase(nn.Module):
    """What a user's own fake quantizer is derived from; its tensors are `scale` and `zero_point`.

    Both have their final shape before anything runs. What the config's observer measured is copied into them; only
    after that is `forward` called. There are no switches to enable: calibrating is a phase.
    """

    scale: Tensor
    zero_point: Tensor

    @abstractmethod
    def forward(self, X: Tensor) -> Tensor:  # noqa: N803, torch's name
        """`X` on its grid."""

    @abstractmethod
    def calculate_qparams(self) -> tuple[Tensor, Tensor]:
        """The scale and zero point to deploy."""

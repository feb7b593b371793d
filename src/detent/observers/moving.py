"""A range that follows the batches: the exponential moving average of each batch's ends."""

from __future__ import annotations

from torch import Tensor

from detent.errors import RangeError
from detent.observers.ranks import over_ranks

__all__ = ["MovingRange"]


class MovingRange:
    """`end = momentum * end + (1 - momentum) * end of the batch`; the first batch counts whole.

    >>> import torch
    >>> moving = MovingRange(momentum=0.9)
    >>> moving.update(torch.tensor(-1.0), torch.tensor(1.0))
    >>> moving.update(torch.tensor(-1.0), torch.tensor(2.0))
    >>> [round(end.item(), 4) for end in moving.ends()]
    [-1.0, 1.1]
    """

    def __init__(self, momentum: float):
        if not 0.0 <= momentum < 1.0:
            raise RangeError(f"momentum {momentum}", "it weighs the past against the new batch", "choose 0 <= m < 1")
        self.momentum = momentum
        self._low: Tensor | None = None
        self._high: Tensor | None = None

    def update(self, low: Tensor, high: Tensor) -> None:
        """Take in the ends of one batch."""
        if self._low is None or self._high is None:
            self._low, self._high = low, high
            return
        self._low = self._low.lerp(low, 1.0 - self.momentum)
        self._high = self._high.lerp(high, 1.0 - self.momentum)

    def ends(self) -> tuple[Tensor, Tensor]:
        """The averaged ends, over the ranks as well."""
        assert self._low is not None
        assert self._high is not None
        return over_ranks(self._low, "mean"), over_ranks(self._high, "mean")

"""An exponential moving average of the range of each batch."""

from __future__ import annotations

from torch import Tensor

from detent.errors import RangeError

__all__ = ["Ends", "checked_momentum", "moved"]

Ends = tuple[Tensor, Tensor]


def checked_momentum(momentum: float) -> float:
    if not 0.0 <= momentum < 1.0:
        raise RangeError(f"momentum {momentum}", "it weighs the past against the new batch", "choose 0 <= m < 1")
    return momentum


def moved(ends: Ends | None, batch: Ends, momentum: float) -> Ends:
    """`end = momentum * end + (1 - momentum) * end of the batch`; the first batch counts whole.

    >>> import torch
    >>> ends = moved(None, (torch.tensor(-1.0), torch.tensor(1.0)), momentum=0.9)
    >>> ends = moved(ends, (torch.tensor(-1.0), torch.tensor(2.0)), momentum=0.9)
    >>> [round(end.item(), 4) for end in ends]
    [-1.0, 1.1]
    """
    if ends is None:
        return batch
    low, high = (old.lerp(new, 1.0 - momentum) for old, new in zip(ends, batch, strict=True))
    return low, high

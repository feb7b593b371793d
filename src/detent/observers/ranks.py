"""Reductions over the ranks of a distributed job; the tensor itself where there is one process."""

from __future__ import annotations

from typing import Literal

import torch
import torch.distributed as dist
from torch import Tensor

__all__ = ["gather_over_ranks", "many_ranks", "over_ranks"]

_OPS = {"min": "MIN", "max": "MAX", "sum": "SUM", "mean": "SUM"}


def over_ranks(values: Tensor, how: Literal["min", "max", "sum", "mean"]) -> Tensor:
    """`values` reduced over all ranks; every rank gets the same. The input is left as it was."""
    if not many_ranks():
        return values
    total = values.clone()
    dist.all_reduce(total, op=getattr(dist.ReduceOp, _OPS[how]))
    return total / dist.get_world_size() if how == "mean" else total


def gather_over_ranks(values: Tensor) -> Tensor:
    """The rows of all ranks, in rank order; ranks may hold different numbers of rows."""
    if not many_ranks():
        return values
    counts = torch.zeros(dist.get_world_size(), dtype=torch.int64, device=values.device)
    counts[dist.get_rank()] = len(values)
    dist.all_reduce(counts)
    # Every rank must send the same size, so the shorter ones are padded and cut again.
    padded = values.new_zeros(int(counts.max()), *values.shape[1:])
    padded[: len(values)] = values
    parts = [torch.empty_like(padded) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, padded)
    return torch.cat([part[:count] for part, count in zip(parts, counts.tolist(), strict=True)])


def many_ranks() -> bool:
    """Whether this is one process of several."""
    return dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1

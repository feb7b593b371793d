"""Batch norms whose statistics are those of the batches of all ranks, on any device.

`nn.SyncBatchNorm` is for GPUs only, and a module of another class is another operation to the exporter; so the modules
stay what they are and compute another way inside a block. Folded ones do so by themselves. A hook cannot do it: the
forward of the class, which moves the running statistics, would run as well. So the block puts a forward on the
instance, and puts back what was there.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from detent.graph.batch_norm import follow, moments_over_ranks

__all__ = ["batch_norms_of", "synced_batch_norms"]

_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)


def batch_norms_of(model: nn.Module) -> list[nn.Module]:
    """Every batch norm that keeps statistics, once."""
    return [m for m in model.modules() if isinstance(m, _NORMS) and m.track_running_stats]


@contextmanager
def synced_batch_norms(model: nn.Module, ranks: int) -> Iterator[None]:
    """Inside the block batch norms in training mode take their statistics over all ranks."""
    norms = batch_norms_of(model) if ranks > 1 else []
    before = {norm: vars(norm).get("forward") for norm in norms}
    for norm in norms:
        norm.forward = partial(_forward, norm)
    try:
        yield
    finally:
        for norm, forward in before.items():
            del norm.forward
            if forward is not None:
                norm.forward = forward


def _forward(norm: Any, x: Tensor) -> Tensor:
    if not norm.training:
        out: Tensor = type(norm).forward(norm, x)
        return out
    kind, x = x.dtype, x.to(norm.running_mean.dtype)  # sums of half precision would lose what small values add
    found = moments_over_ranks(x)
    follow(norm, found)
    factor = torch.rsqrt(found.variance + norm.eps)
    factor = factor if norm.weight is None else factor * norm.weight
    shape = (-1, *[1] * (x.ndim - 2))
    y = (x - found.mean.reshape(shape)) * factor.reshape(shape)
    return (y if norm.bias is None else y + norm.bias.reshape(shape)).to(kind)

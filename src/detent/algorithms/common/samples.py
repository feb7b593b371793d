"""Draws batches from the cached inputs of a block."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

__all__ = ["BlockSamples", "Sample"]


class Sample(NamedTuple):
    """One call of a block: its inputs in the quantized and the float run, and its float output."""

    got: tuple[Any, ...]
    wanted: tuple[Any, ...]
    output: Tensor


class BlockSamples:
    """Draws rows from all calls if every tensor has one row per sample, otherwise whole calls."""

    def __init__(self, cached: Sequence[Sample], batch: int, drop: float, seed: int):
        self._cached, self._drop = cached, drop
        self._random = torch.Generator().manual_seed(seed)
        rows = [_rows(sample) for sample in cached]
        self._by_rows = all(count is not None for count in rows)
        self._places = [(call, row) for call, count in enumerate(rows) for row in range(count or 0)]
        self._batch = min(batch, len(self._places))

    def draw(self) -> tuple[list[Any], Tensor]:
        """Inputs of the block, and the target outputs for them."""
        if not self._by_rows:
            sample = self._cached[int(torch.randint(len(self._cached), (), generator=self._random))]
            return [
                self._mixed(got, wanted) for got, wanted in zip(sample.got, sample.wanted, strict=True)
            ], sample.output
        chosen: dict[int, list[int]] = {}
        for index in torch.randint(len(self._places), (self._batch,), generator=self._random).tolist():
            call, row = self._places[index]
            chosen.setdefault(call, []).append(row)
        inputs = [self._gathered(chosen, position) for position in range(len(self._cached[0].got))]
        return inputs, torch.cat([self._cached[call].output[rows] for call, rows in chosen.items()])

    def _gathered(self, chosen: dict[int, list[int]], position: int) -> Any:
        if not isinstance(self._cached[0].got[position], Tensor):
            return self._cached[0].got[position]
        got = torch.cat([self._cached[call].got[position][rows] for call, rows in chosen.items()])
        if not self._drop:
            return got
        return self._mixed(got, torch.cat([self._cached[call].wanted[position][rows] for call, rows in chosen.items()]))

    def _mixed(self, got: Any, wanted: Any) -> Any:
        if not isinstance(got, Tensor) or not got.is_floating_point():
            return got
        if not self._drop:
            return got.clone()
        return torch.where(torch.rand(got.shape, generator=self._random).to(got.device) < self._drop, wanted, got)


def _rows(sample: Sample) -> int | None:
    """The number of rows that all tensors of a call share; None if they differ, or if a value is not a tensor."""
    if not all(isinstance(value, Tensor) for value in sample.got):
        return None
    sizes = {value.shape[0] if value.ndim else 0 for value in (*sample.got, sample.output)}
    return sizes.pop() if len(sizes) == 1 else None

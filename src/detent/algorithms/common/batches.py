"""Calibration data: how a batch is passed to a model, and which part is held back."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from detent.errors import TensorError
from detent.graph import Inputs, PreparedModel, call_of
from detent.observers.ranks import over_ranks

__all__ = ["as_list", "few", "held_back", "noise_of", "outputs_of", "run"]

_HELD_BACK = 4  # the last quarter


def as_list(batches: Iterable[Any]) -> list[Any]:
    """The batches as a list, because they are run more than once; at least one."""
    found = list(batches)
    if not found:
        raise TensorError("an algorithm without batches", "no batch was given", "give it calibration data")
    return found


def held_back(batches: Sequence[Any]) -> tuple[list[Any], list[Any]]:
    """The data to learn from, and the data to judge by: the last quarter of the batches, or of the rows of a single
    batch.

    A single batch that cannot be split, because it has one row or tensors of different lengths, is used for both.
    """
    if len(batches) > 1:
        kept = max(1, len(batches) // _HELD_BACK)
        return list(batches[:-kept]), list(batches[-kept:])
    rows = _rows(batches[0])
    if rows is None or rows < 2:
        return list(batches), list(batches)
    cut = rows - max(1, rows // _HELD_BACK)
    return [_cut(batches[0], slice(0, cut))], [_cut(batches[0], slice(cut, rows))]


def few(batches: Sequence[Any], rows: int) -> list[Any]:
    """The first batches that have `rows` rows together; at least one. Batches without rows count as one."""
    found: list[Any] = []
    for batch in batches:
        if found and rows <= 0:
            break
        found.append(batch)
        rows -= _rows(batch) or 1
    return found


def run(model: nn.Module, batch: Any) -> Any:
    """Run a model on one batch: a tensor, a tuple of inputs (labels after them are ignored if the model is a prepared
    one), a dict, or the `Inputs` of a call."""
    if isinstance(model, PreparedModel):
        batch = call_of(model, batch)
    if isinstance(batch, Inputs):
        return model(*batch.args, **batch.kwargs)
    if isinstance(batch, Mapping):
        return model(**batch)
    return model(*batch) if isinstance(batch, (list, tuple)) else model(batch)


def outputs_of(model: nn.Module, batches: Iterable[Any]) -> list[list[Tensor]]:
    """The floating-point output tensors for each batch."""
    return [list(_real(run(model, batch))) for batch in batches]


def noise_of(wanted: Sequence[Sequence[Tensor]], got: Sequence[Sequence[Tensor]], device: torch.device) -> float:
    """The squared error of two results of `outputs_of`, over all ranks; infinite if their shapes differ."""
    total = torch.zeros((), dtype=torch.float64, device=device)
    for wants, haves in zip(wanted, got, strict=True):
        if [want.shape for want in wants] != [have.shape for have in haves]:
            total += torch.inf
            continue
        for want, have in zip(wants, haves, strict=True):
            total += (have - want).double().square().sum().to(device)
    return float(over_ranks(total, "sum"))


def _real(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        if value.is_floating_point():
            yield value
    elif isinstance(value, Mapping):
        for part in value.values():
            yield from _real(part)
    elif isinstance(value, (list, tuple)):
        for part in value:
            yield from _real(part)
    elif hasattr(value, "__dict__"):
        yield from _real(vars(value))


def _tensors(batch: Any) -> list[Tensor]:
    if isinstance(batch, Inputs):
        return [*_tensors(batch.args), *_tensors(batch.kwargs)]
    parts = batch.values() if isinstance(batch, Mapping) else batch if isinstance(batch, (list, tuple)) else [batch]
    return [part for part in parts if isinstance(part, Tensor)]


def _rows(batch: Any) -> int | None:
    sizes = {tensor.shape[0] if tensor.ndim else 0 for tensor in _tensors(batch)}
    return sizes.pop() if len(sizes) == 1 else None


def _cut(batch: Any, rows: slice) -> Any:
    if isinstance(batch, Mapping):
        return {name: _cut(part, rows) for name, part in batch.items()}
    if isinstance(batch, (list, tuple)):
        return [_cut(part, rows) for part in batch]
    return batch[rows] if isinstance(batch, torch.Tensor) else batch

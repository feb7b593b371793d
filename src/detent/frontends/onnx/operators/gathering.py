"""Reading and writing by index."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from detent.frontends.onnx.builder import Constant
from detent.frontends.onnx.call import Call, Converter
from detent.frontends.onnx.reading.sizes import bounded

__all__ = ["CONVERTERS"]


def _gather(call: Call) -> Any:
    table, indices, axis = call.value(0), call.value(1), call.integer("axis")
    matrix = isinstance(table, Constant) and table.trainable and table.tensor.ndim == 2
    if matrix and axis == 0 and not isinstance(indices, Constant):
        assert isinstance(table, Constant)
        # Not device="meta", which would take seconds here: torch fills embeddings by a function it must load first.
        module: Any = nn.Embedding.from_pretrained(table.tensor, freeze=False)  # type: ignore[no-untyped-call]
        module.weight = call.parameter(table)
        return call.module(module, indices, weight=table)
    return call.op(gather, table, indices, kind="gather", axis=axis)


def gather(x: Tensor, indices: Tensor, *, axis: int) -> Tensor:
    """Negative indices count from the end."""
    at = axis % x.ndim
    shape = bounded([*x.shape[:at], *indices.shape, *x.shape[at + 1 :]])
    flat = _from_start(indices.reshape(-1).long(), x.shape[at])
    return x.index_select(at, flat).reshape(shape)


def _from_start(indices: Tensor, size: int) -> Tensor:
    return torch.where(indices < 0, indices + size, indices)


def _gather_elements(call: Call) -> Any:
    return call.op(gather_elements, call.value(0), call.value(1), kind="gather", axis=call.integer("axis"))


def gather_elements(x: Tensor, indices: Tensor, *, axis: int) -> Tensor:
    return torch.gather(x, axis, _from_start(indices.long(), x.shape[axis]))


def _gather_nd(call: Call) -> Any:
    return call.op(gather_nd, call.value(0), call.value(1), kind="gather", batch=call.integer("batch_dims"))


def gather_nd(x: Tensor, indices: Tensor, *, batch: int) -> Tensor:
    """The last axis of `indices` is an index into `x`, after its `batch` first axes."""
    lead = x.shape[:batch]
    depth = indices.shape[-1]
    rest = x.shape[batch + depth :]
    bounded([math.prod(indices.shape[:-1]), *rest])
    table = x.reshape(math.prod(lead), *x.shape[batch:])
    places = indices.long().reshape(math.prod(lead), -1, depth)
    rows = torch.arange(table.shape[0], device=x.device).reshape(-1, 1).expand(places.shape[:2])
    where = (rows, *(places[..., at] for at in range(depth)))
    found = table[where]
    return found.reshape([*indices.shape[:-1], *rest])


def _scatter_elements(call: Call) -> Any:
    how = _reduction(call)
    values = (call.value(0), call.value(1), call.value(2))
    return call.op(scatter_elements, *values, axis=call.integer("axis"), how=how)


def _reduction(call: Call) -> str:
    how = call.text("reduction", "none")
    if how not in ("none", "add", "mul", "max", "min"):
        call.refuse(f"the reduction {how!r}", "export the model again")
    return how


_REDUCTIONS = {"add": "sum", "mul": "prod", "max": "amax", "min": "amin"}


def scatter_elements(x: Tensor, indices: Tensor, updates: Tensor, *, axis: int, how: str) -> Tensor:
    at = _from_start(indices.long(), x.shape[axis])
    if how == "none":
        return x.scatter(axis, at, updates)
    return x.scatter_reduce(axis, at, updates, reduce=_REDUCTIONS[how], include_self=True)


def _scatter_nd(call: Call) -> Any:
    return call.op(scatter_nd, call.value(0), call.value(1), call.value(2), how=_reduction(call))


def scatter_nd(x: Tensor, indices: Tensor, updates: Tensor, *, how: str) -> Tensor:
    depth = indices.shape[-1]
    rest = x.shape[depth:]
    places = indices.long().reshape(-1, depth)
    strides = [math.prod(x.shape[at + 1 : depth]) for at in range(depth)]
    rows = torch.zeros(places.shape[0], dtype=torch.int64, device=x.device)
    for at, stride in enumerate(strides):
        place = _from_start(places[:, at], x.shape[at])
        if bool((place < 0).any()) or bool((place >= x.shape[at]).any()):
            raise IndexError(f"an index is outside of axis {at}, of {x.shape[at]}")
        rows = rows + place * stride
    table = x.reshape(-1, math.prod(rest))
    values = updates.reshape(-1, math.prod(rest))
    where = rows.unsqueeze(1).expand_as(values)
    if how == "none":
        return table.scatter(0, where, values).reshape(x.shape)
    return table.scatter_reduce(0, where, values, reduce=_REDUCTIONS[how], include_self=True).reshape(x.shape)


def _compress(call: Call) -> Any:
    axis = call.integer("axis") if call.attribute("axis") is not None else None
    return call.op(compress, call.value(0), call.value(1), axis=axis)


def compress(x: Tensor, condition: Tensor, *, axis: int | None) -> Tensor:
    places = condition.nonzero().reshape(-1)
    return x.reshape(-1).index_select(0, places) if axis is None else x.index_select(axis, places)


def _reverse_sequence(call: Call) -> Any:
    time, batch = call.integer("time_axis"), call.integer("batch_axis")
    if {time, batch} != {0, 1}:
        call.refuse(f"time axis {time} and batch axis {batch}", "ONNX has 0 and 1")
    return call.op(reverse_sequence, call.value(0), call.value(1), time=time)


def reverse_sequence(x: Tensor, lengths: Tensor, *, time: int) -> Tensor:
    """The first `lengths[b]` steps of each sequence backward, the rest as it is."""
    by_batch = x if time == 1 else x.transpose(0, 1)
    steps = torch.arange(by_batch.shape[1], device=x.device).unsqueeze(0)
    ends = lengths.long().unsqueeze(1)
    order = torch.where(steps < ends, ends - 1 - steps, steps)
    order = order.reshape(*order.shape, *[1] * (x.ndim - 2)).expand_as(by_batch)
    turned = by_batch.gather(1, order)
    return turned if time == 1 else turned.transpose(0, 1)


def _trilu(call: Call) -> Any:
    return call.op(triangle, call.value(0), call.optional(1), upper=bool(call.integer("upper")))


def triangle(x: Tensor, offset: Tensor | None, *, upper: bool) -> Tensor:
    # A diagonal beyond the corners is the same as one at them, and torch takes no larger ones.
    limit = max(x.shape[-2:]) + 1
    diagonal = 0 if offset is None else max(-limit, min(limit, int(offset)))
    return torch.triu(x, diagonal) if upper else torch.tril(x, diagonal)


def _tensor_scatter(call: Call) -> Any:
    mode = call.text("mode")
    if mode not in ("linear", "circular"):
        call.refuse(f"the mode {mode!r}", "ONNX has 'linear' and 'circular'")
    given = (call.value(0), call.value(1), call.optional(2))
    return call.op(tensor_scatter, *given, axis=call.integer("axis"), circular=mode == "circular")


def tensor_scatter(cache: Tensor, update: Tensor, starts: Tensor | None, *, axis: int, circular: bool) -> Tensor:
    """`update` written into the cache along `axis`, for each sample of the batch from its own place on."""
    at, length = axis % cache.ndim, cache.shape[axis]
    begin = torch.zeros(cache.shape[0], dtype=torch.int64, device=cache.device) if starts is None else starts
    places = begin.reshape(-1, 1) + torch.arange(update.shape[at], device=cache.device)
    if not circular and bool(((places < 0) | (places >= length)).any()):
        raise ValueError("an update that reaches beyond the cache")
    shape = [size if index in (0, at) else 1 for index, size in enumerate(update.shape)]
    return cache.scatter(at, (places % length).reshape(shape).expand(update.shape), update)


CONVERTERS: dict[str, Converter] = {
    "Gather": _gather,
    "GatherElements": _gather_elements,
    "GatherND": _gather_nd,
    "Scatter": _scatter_elements,
    "ScatterElements": _scatter_elements,
    "ScatterND": _scatter_nd,
    "TensorScatter": _tensor_scatter,
    "Compress": _compress,
    "ReverseSequence": _reverse_sequence,
    "Trilu": _trilu,
}

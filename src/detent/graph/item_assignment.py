"""Assignments to a part of a tensor while a model is traced: `y[..., :2] = z`, `y[y < 0] = 0.0`.

torch.fx knows no assignment. What is assigned is put between what stays (`torch.cat`), which every target can write; a
mask is a `masked_fill`. The node `becomes` says from where on the tensor is another one, and is gone when in-place
operations have been written out of place.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, fx

__all__ = ["assigned", "becomes"]


class Part(NamedTuple):
    """Of one axis: where it begins and ends, whether that is the end of the axis, and whether what is assigned has no
    such axis (`y[:, 0] = z`)."""

    axis: int
    start: int
    stop: int
    is_last: bool
    is_left_out: bool


Examples = Callable[[fx.Proxy], list[Any]]
"""What a proxy stands for, for the example inputs and for a batch of twice their number."""


def becomes(old: Tensor, new: Tensor) -> Tensor:
    """Let readers of `old` behind this node read `new`."""
    del old
    return new


def assigned(proxy: fx.Proxy, index: Any, value: Any, examples: Examples) -> Any:
    """`proxy` with `value` at `index`; None for what is not written: steps, lists, what depends on the batch size."""
    held = examples(proxy)
    if not all(isinstance(one, Tensor) for one in held):
        return None
    if isinstance(index, fx.Proxy):
        is_mask = all(isinstance(one, Tensor) and one.dtype == torch.bool for one in examples(index))
        return proxy.masked_fill(index, value) if is_mask and isinstance(value, (int, float)) else None
    parts, *again = [_parts(index, tuple(one.shape)) for one in held]
    if parts is None or any(other != parts for other in again):
        return None
    if isinstance(value, (int, float)):
        return _joined(proxy, parts, lambda part: torch.full_like(part, value))
    given = examples(value) if isinstance(value, fx.Proxy) else [value] * len(held)
    if not all(isinstance(one, Tensor) and one.dtype == whole.dtype for one, whole in zip(given, held, strict=True)):
        return None
    wanted = [[_length(axis, size, parts) for axis, size in enumerate(one.shape)] for one in held]
    rank, shapes = len(wanted[0]), [list(one.shape) for one in given]
    for part in reversed(parts):
        behind = rank - 1 - part.axis
        if part.is_left_out and len(shapes[0]) >= behind:
            value = value.unsqueeze(-behind - 1)
            shapes = [[*one[: len(one) - behind], 1, *one[len(one) - behind :]] for one in shapes]
    return _joined(proxy, parts, lambda part: value if shapes == wanted else value.expand_as(part))


def _length(axis: int, size: int, parts: Sequence[Part]) -> int:
    return next((part.stop - part.start for part in parts if part.axis == axis), size)


def _joined(whole: Any, parts: Sequence[Part], filled: Callable[[Any], Any]) -> Any:
    """`whole` with `filled(part)` in the place of a part, axis by axis."""
    if not parts:
        return filled(whole)
    (axis, start, stop, is_last, _), *others = parts
    before = [_cut(whole, axis, 0, start)] if start else []
    behind = [] if is_last else [_cut(whole, axis, stop, None)]
    return torch.cat([*before, _joined(_cut(whole, axis, start, stop), others, filled), *behind], axis)


def _cut(whole: Any, axis: int, start: int, stop: int | None) -> Any:
    index = (*[slice(None)] * axis, slice(start, stop))
    return whole[index]


def _parts(index: Any, shape: tuple[int, ...]) -> list[Part] | None:
    """The axes of which a part is assigned; None if it is not made of slices and numbers."""
    given = list(index) if isinstance(index, tuple) else [index]
    if any(one is Ellipsis for one in given):
        at = next(place for place, one in enumerate(given) if one is Ellipsis)
        given[at : at + 1] = [slice(None)] * (len(shape) - len(given) + 1)
    if len(given) > len(shape):
        return None
    found: list[Part] = []
    for axis, (one, size) in enumerate(zip(given, shape, strict=False)):
        if type(one) is int and -size <= one < size:
            found.append(Part(axis, one % size, one % size + 1, one % size + 1 == size, True))
            continue
        if not isinstance(one, slice) or not all(type(end) in (int, type(None)) for end in (one.start, one.stop)):
            return None
        start, stop, _ = one.indices(size)
        if one.step not in (None, 1) or stop <= start:
            return None
        if (start, stop) != (0, size):
            found.append(Part(axis, start, stop, stop == size, False))
    return found

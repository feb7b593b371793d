"""Assignments to a part of a tensor while a model is traced: `y[..., :2] = z`, `y[:, ::2] = z`, `y[y < 0] = 0.0`.

torch.fx cannot represent an assignment. The assigned part is concatenated with the parts that stay (`torch.cat`), which
every target supports. Indices that are not contiguous (steps, lists) are gathered from both. A mask becomes a
`masked_fill`. The node `becomes` marks from where on the tensor is replaced; it is removed when in-place operations
have been rewritten.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, fx

__all__ = ["assigned", "becomes"]


class AssignedPart(NamedTuple):
    """The assigned part of one axis: its indices, how they are written, whether the last of them is the end of the
    axis, and whether the assigned value lacks this axis (`y[:, 0] = z`). `size` is that of the axis, if the indices are
    not contiguous."""

    axis: int
    places: tuple[int, ...]
    index: Any
    is_last: bool
    is_left_out: bool
    size: int | None = None


Examples = Callable[[fx.Proxy], list[Any]]
"""What a proxy stands for, for the example inputs and for a batch of twice their number."""


def becomes(old: Tensor, new: Tensor) -> Tensor:
    """Let readers of `old` after this node read `new`."""
    del old
    return new


def assigned(proxy: fx.Proxy, index: Any, value: Any, examples: Examples) -> Any:
    """`proxy` with `value` at `index`; None for what is not written: tensors of places, what depends on the batch."""
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


def _length(axis: int, size: int, parts: Sequence[AssignedPart]) -> int:
    return next((len(part.places) for part in parts if part.axis == axis), size)


def _joined(whole: Any, parts: Sequence[AssignedPart], filled: Callable[[Any], Any]) -> Any:
    """`whole` with `filled(part)` in the place of a part, axis by axis."""
    if not parts:
        return filled(whole)
    part, *others = parts
    inner = _joined(_cut(whole, part.axis, part.index), others, filled)
    if part.size is not None:
        places = list(range(part.size))
        for position, place in enumerate(part.places):
            places[place] = part.size + position
        return _cut(torch.cat([whole, inner], part.axis), part.axis, places)
    start, stop = part.places[0], part.places[-1] + 1
    before = [_cut(whole, part.axis, slice(0, start))] if start else []
    behind = [] if part.is_last else [_cut(whole, part.axis, slice(stop, None))]
    return torch.cat([*before, inner, *behind], part.axis)


def _cut(whole: Any, axis: int, index: Any) -> Any:
    return whole[(*[slice(None)] * axis, index)]


def _parts(index: Any, shape: tuple[int, ...]) -> list[AssignedPart] | None:
    """The axes of which a part is assigned; None if it is not made of slices and numbers."""
    given = list(index) if isinstance(index, tuple) else [index]
    if any(one is Ellipsis for one in given):
        at = next(place for place, one in enumerate(given) if one is Ellipsis)
        given[at : at + 1] = [slice(None)] * (len(shape) - len(given) + 1)
    if len(given) > len(shape):
        return None
    if any(isinstance(one, list) for one in given) and sum(not isinstance(one, slice) for one in given) > 1:
        return None  # places of several axes, one by one
    parts = [_part(axis, one, size) for axis, (one, size) in enumerate(zip(given, shape, strict=False))]
    return None if None in parts else [part for part in parts if part is not None and part.index != slice(None)]


def _part(axis: int, index: Any, size: int) -> AssignedPart | None:
    """The assigned part; the index `:` is the whole axis."""
    if type(index) is int and -size <= index < size:
        place = index % size
        return AssignedPart(axis, (place,), slice(place, place + 1), place + 1 == size, True)
    if isinstance(index, list) and index and all(type(one) is int and -size <= one < size for one in index):
        places = tuple(one % size for one in index)
        return AssignedPart(axis, places, list(places), False, False, size) if len(set(places)) == len(places) else None
    if not isinstance(index, slice):
        return None
    if not all(type(end) in (int, type(None)) for end in (index.start, index.stop, index.step)):
        return None
    places = tuple(range(*index.indices(size)))
    if not places:
        return None
    if places == tuple(range(size)):
        return AssignedPart(axis, (), slice(None), True, False)
    if len(places) > 1 and places[1] - places[0] > 1:
        return AssignedPart(
            axis,
            places,
            slice(places[0], None if index.stop is None else places[-1] + 1, index.step),
            False,
            False,
            size,
        )
    return AssignedPart(axis, places, slice(places[0], places[-1] + 1), places[-1] + 1 == size, False)

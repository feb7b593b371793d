"""Limits on the sizes in a file."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar

from detent.errors import OnnxError

__all__ = ["MOST_ELEMENTS", "TooLargeError", "bounded", "limited_to"]

MOST_ELEMENTS = 2**27
"""What an operation that makes up its own size may make: 512 MB of float32, far above what networks ask for."""

_limit: ContextVar[int] = ContextVar("_limit", default=MOST_ELEMENTS)


class TooLargeError(OnnxError):
    """More than may be made now, though not more than may ever be."""


@contextmanager
def limited_to(elements: int) -> Iterator[None]:
    """Inside the block `bounded` raises `TooLargeError` above so many elements."""
    token = _limit.set(elements)
    try:
        yield
    finally:
        _limit.reset(token)


def bounded(shape: Sequence[int]) -> list[int]:
    """`shape`, unless it is one that no network has.

    >>> bounded([2, 3])
    [2, 3]
    """
    sizes = [int(size) for size in shape]
    count = 0 if 0 in sizes else math.prod(sizes)
    if any(size < 0 for size in sizes) or count > _limit.get():
        kind = TooLargeError if 0 < count <= MOST_ELEMENTS and min(sizes) > 0 else OnnxError
        raise kind(f"a tensor of the shape {sizes[:8]}", f"{count} elements, or fewer than none", "check the file")
    return sizes

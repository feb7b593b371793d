"""Adaptive pooling: windows that divide an axis into a given number of parts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from detent.errors import DeployError
from detent.frontends.torch.builder import Builder
from detent.frontends.torch.values import Ref

__all__ = ["adaptive_pool"]


def adaptive_pool(kind: str) -> Callable[..., Ref]:
    """Global pooling for one value per channel, plain pooling for a divisor of the size, else window by window."""

    def emit(b: Builder, input: Ref, output_size: Any, return_indices: bool = False) -> Ref:
        del output_size
        if return_indices:
            raise DeployError(f"write {b.current!r}", "a pooling that returns indices", "do not ask for the indices")
        sizes, to = [int(size) for size in input.shape[2:]], [int(size) for size in b.result.shape[2:]]
        if all(size == 1 for size in to):
            return b.final({"Average": "GlobalAveragePool", "Max": "GlobalMaxPool"}[kind], [input])
        kernel = [size // new for size, new in zip(sizes, to, strict=True)]
        if [new * length for new, length in zip(to, kernel, strict=True)] == sizes:
            return b.final(f"{kind}Pool", [input], kernel_shape=kernel, strides=kernel)
        return _by_windows(b, f"{kind}Pool", input, sizes, to)

    return emit


def _by_windows(b: Builder, pool: str, input: Ref, sizes: Sequence[int], to: Sequence[int]) -> Ref:
    """One axis after the other: every window of a plane has as many numbers in each of its rows."""
    changed = [axis for axis, (size, new) in enumerate(zip(sizes, to, strict=True)) if size != new]
    current: Ref | str = input
    for axis in changed:
        parts = []
        for start, stop in _windows(sizes[axis], to[axis]):
            ends = [b.integers([value]) for value in (start, stop, axis + 2)]
            kernel = [stop - start if other == axis else 1 for other in range(len(sizes))]
            parts.append(b.emit(pool, [b.emit("Slice", [current, *ends])], kernel_shape=kernel))
        if axis == changed[-1]:
            return b.final("Concat", parts, axis=axis + 2)
        current = b.emit("Concat", parts, axis=axis + 2)
    raise AssertionError(sizes)


def _windows(size: int, count: int) -> list[tuple[int, int]]:
    """The start and end of torch's windows; they overlap if the size is no multiple of the count.

    >>> _windows(8, 3)
    [(0, 3), (2, 6), (5, 8)]
    """
    return [(i * size // count, -(-(i + 1) * size // count)) for i in range(count)]

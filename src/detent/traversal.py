"""Walks over graphs that may be thousands of operations deep: no function calls itself along their edges."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator
from typing import TypeVar

__all__ = ["dependencies_first", "reachable"]

Node = TypeVar("Node", bound=Hashable)


def reachable(starts: Iterable[Node], following: Callable[[Node], Iterable[Node]]) -> Iterator[Node]:
    """The starts and everything reachable from them, each once, depth first.

    >>> edges = {"a": "bc", "b": "d", "c": "d", "d": ""}
    >>> list(reachable("a", edges.__getitem__))
    ['a', 'b', 'd', 'c']
    """
    seen: set[Node] = set()
    left = list(starts)[::-1]
    while left:
        node = left.pop()
        if node not in seen:
            seen.add(node)
            yield node
            left += list(following(node))[::-1]


def dependencies_first(starts: Iterable[Node], needs: Callable[[Node], Iterable[Node]]) -> Iterator[Node]:
    """The starts and all that they need, each once and behind what it needs. There must be no cycles.

    `needs` is asked as late as can be: it may leave out what was computed since.

    >>> edges = {"a": "bc", "b": "d", "c": "d", "d": ""}
    >>> list(dependencies_first("a", edges.__getitem__))
    ['d', 'b', 'c', 'a']
    """
    done: set[Node] = set()
    left = [(node, False) for node in starts][::-1]
    while left:
        node, is_ready = left.pop()
        if is_ready:
            done.add(node)
            yield node
        elif node not in done:
            left.append((node, True))
            left += [(each, False) for each in needs(node) if each not in done][::-1]

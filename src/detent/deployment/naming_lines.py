"""Adds the line of the model's code to errors about its operations."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from detent.errors import DeployError
from detent.graph import PreparedModel, line_text

__all__ = ["naming_lines"]


@contextmanager
def naming_lines(prepared: PreparedModel) -> Iterator[None]:
    """Inside the block, a DeployError about an operation also names the line of the model's code that calls it."""
    try:
        yield
    except DeployError as error:
        line = _line_of(error.asked, prepared)
        if not line or line in error.found:
            raise
        raise type(error)(error.asked, f"{error.found} ({line})", error.to_do) from error


def _line_of(asked: str, prepared: PreparedModel) -> str:
    """The line for the first quoted name that is a node of the model, or derived from one: `conv/node_Pad_3`."""
    places = {
        node.name: line_text(node.meta["line"])
        for graph in prepared.graphs.values()
        for node in graph.nodes
        if "line" in node.meta
    }
    for name in re.findall(r"'([^']+)'", asked):
        for known in (name, *re.split("[/:]", name)[:1]):
            if known in places:
                return places[known]
    return ""

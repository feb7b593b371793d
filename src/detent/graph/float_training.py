"""Warns if a prepared model is trained while it computes in float, because its scales do not learn."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn

from detent.errors import NotQuantizedWarning
from detent.graph.capture.running import flat

__all__ = ["warning_if_trained"]


@contextmanager
def warning_if_trained(model: nn.Module, why: str) -> Iterator[None]:
    """Inside the block the first backward pass through the output of `model` warns, once, that it ran in float."""
    warned = False

    def tell(_: Tensor) -> None:
        nonlocal warned
        if not warned:
            warned = True
            warnings.warn(f"the model is trained in float: {why}", NotQuantizedWarning, stacklevel=2)

    def watch(_: nn.Module, __: Any, given: Any) -> None:
        for value in flat(given):
            if isinstance(value, Tensor) and value.requires_grad:
                value.register_hook(tell)  # type: ignore[no-untyped-call]

    handle = model.register_forward_hook(watch)
    try:
        yield
    finally:
        handle.remove()

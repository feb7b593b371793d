"""The mode of a quantizer (quantize, pass through or observe), set by context managers that nest.

>>> import torch
>>> from detent.numerics import IntGrid, QParams, Scheme
>>> from detent.quantizers import Fixed
>>> q = Fixed(Scheme(IntGrid(4)), ())
>>> q.initialize(QParams.symmetric(torch.tensor(1.0)))
>>> x = torch.tensor(0.8)
>>> with in_modes({q: PASS_THROUGH}):
...     float(q(x)), float(q.quantize(x))
(0.800000011920929, 1.0)
>>> float(q(x))
1.0
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol, TypeVar

from torch import Tensor

__all__ = ["PASS_THROUGH", "QUANTIZE", "Mode", "in_modes"]


@dataclass(frozen=True, kw_only=True)
class Mode:
    """The tensor is passed to `watch` if there is one; then it is quantized or returned unchanged."""

    quantizes: bool = True
    watch: Callable[[Tensor], None] | None = None


QUANTIZE = Mode()
PASS_THROUGH = Mode(quantizes=False)


class _HasMode(Protocol):
    """A module whose forward depends on its mode."""

    mode: Mode


_M = TypeVar("_M", bound=_HasMode)


@contextmanager
def in_modes(modes: Mapping[_M, Mode]) -> Iterator[None]:
    """Inside the block each module has the given mode; afterwards, also after an error, its previous one."""
    before = {module: module.mode for module in modes}
    for module, mode in modes.items():
        module.mode = mode
    try:
        yield
    finally:
        for module, mode in before.items():
            module.mode = mode

"""Measures with a quantizer's observer, without changing the quantizer."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from detent.numerics import QParams, Scheme
from detent.observers import OBSERVERS
from detent.quantizers import Quantizer, on_grid

__all__ = ["measured", "put_on_grid"]


def measured(quantizer: Quantizer, tensors: Iterable[Tensor], scheme: Scheme | None = None) -> QParams:
    """The scale and zero point that a quantizer's observer finds for some tensors, optionally for another scheme."""
    name, options = quantizer.observer
    observer = OBSERVERS[name](scheme or quantizer.start_scheme, name=quantizer.name, **options)
    for tensor in tensors:
        observer.observe(tensor)
    found = observer.qparams()
    return quantizer.widened(found, tensor) if scheme is None and quantizer.role == "weight" else found


@torch.no_grad()
def put_on_grid(x: Tensor, qparams: QParams, scheme: Scheme) -> Tensor:
    """`x` rounded to the nearest grid points."""
    return on_grid(x, qparams.scale.to(x.device), qparams.zero_point.to(x.device), scheme)

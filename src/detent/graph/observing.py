"""Observing: a block in which a prepared model runs in float and its quantizers are measured."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

from torch import Tensor, nn

from detent.errors import RangeError
from detent.graph.derived_bias import DerivedBias
from detent.observers import OBSERVERS, Observer
from detent.quantizers import Quantizer

__all__ = ["observing", "quantizers_of"]


def quantizers_of(prepared: nn.Module) -> list[Quantizer]:
    """Every quantizer of a prepared model, once."""
    return [module for module in prepared.modules() if isinstance(module, Quantizer)]


@contextmanager
def observing(prepared: nn.Module, *, quantized: bool = False) -> Iterator[None]:
    """Inside the block every batch is observed; at its end scales are set from what was seen.

    The model runs in float, or, with `quantized`, with the scales it has, so that later layers see what earlier
    ones do to their inputs. All scales are set or none: an error leaves the model as it was. Quantizers that no
    batch reached stay as they were.
    """
    watchers = {quantizer: _Watch(quantizer, quantized=quantized) for quantizer in quantizers_of(prepared)}
    biases = [module for module in prepared.modules() if isinstance(module, DerivedBias)]
    for quantizer, watch in watchers.items():
        quantizer.__dict__["forward"] = watch
    for bias in biases if not quantized else ():
        bias.__dict__["forward"] = _pass
    try:
        yield
    finally:
        for module in (*watchers, *biases):
            module.__dict__.pop("forward", None)
    found = {quantizer: watch.observer.qparams() for quantizer, watch in watchers.items() if watch.seen}
    if watchers and not found:
        raise RangeError("calibrate a model", "no batch was run through it", "give it at least one batch")
    for quantizer, qparams in found.items():
        quantizer.initialise(qparams)


def _pass(x: Tensor) -> Tensor:
    return x


class _Watch:
    """Stands in for the forward pass of one quantizer."""

    def __init__(self, quantizer: Quantizer, *, quantized: bool):
        name, options = quantizer.observer
        self.observer: Observer = OBSERVERS[name](quantizer.scheme, name=quantizer.name, **options)
        self.seen = False
        self._once = quantizer.role != "activation"  # a weight is the same in every batch
        # Asked of the class, because the instance's own forward is this watch.
        self._then: Callable[[Tensor], Tensor] = partial(type(quantizer).forward, quantizer) if quantized else _pass

    def __call__(self, x: Tensor) -> Tensor:
        if not (self._once and self.seen):
            self.observer.observe(x)
            self.seen = True
        return self._then(x)

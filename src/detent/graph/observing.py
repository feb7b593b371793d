"""Observing: a block in which a prepared model runs in float and its quantizers are measured."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress

from torch import Tensor, nn

from detent.errors import DetentError, RangeError
from detent.graph.derived_bias import DerivedBias
from detent.graph.float_ranges import FloatRange, ranges_of, sum_of_weights, watched
from detent.graph.float_training import warning_if_trained
from detent.graph.region import Region
from detent.numerics import QParams
from detent.observers import OBSERVERS, Observer, Start
from detent.quantizers import Mode, Quantizer, in_modes

__all__ = ["modes_to_observe", "observing", "quantizers_of"]


def quantizers_of(prepared: nn.Module) -> list[Quantizer]:
    """Every quantizer of a prepared model, once."""
    return [module for module in prepared.modules() if isinstance(module, Quantizer)]


def modes_to_observe(prepared: nn.Module) -> list[dict[str, str]]:
    """The forward modes that together reach every quantizer, as arguments of calls; one call where there is one mode.

    What only a later mode quantizes (the softmax of predictions, say) would else never be measured.
    """
    modes = prepared.graphs if isinstance(prepared, Region) else {}
    found: list[dict[str, str]] = [{}]
    if len(modes) < 2:
        return found
    reached: set[str] = set()
    for place, (mode, graph) in enumerate(modes.items()):
        called = {str(node.target) for node in graph.nodes if node.op == "call_module"}
        new = [prepared.get_submodule(target) for target in called - reached]
        if place and any(quantizers_of(module) for module in new):
            found.append({"mode": mode})
        reached |= called
    return found


@contextmanager
def observing(prepared: nn.Module, *, quantized: bool = False, only_float: bool = False) -> Iterator[None]:
    """Like `detent.observing`, but quantizers which may start from several ranges keep them as `starts`.

    Inside the block every batch is observed; at its end scales are set from what was seen, all or, after an error,
    none. `only_float` measures tensors that stay float, and nothing else.
    """
    quantized = quantized or only_float
    quantizers = [] if only_float else quantizers_of(prepared)
    watchers = {quantizer: _Watch(quantizer) for quantizer in quantizers}
    beside = {one: _WatchBeside(one) for one in ranges_of(prepared)}
    modes: dict[Quantizer | FloatRange | DerivedBias, Mode] = {}
    modes.update({one: Mode(watch=watch, quantizes=quantized) for one, watch in watchers.items()})
    modes.update({one: Mode(watch=watch, quantizes=False) for one, watch in beside.items()})
    if not only_float:
        modes.update({one: Mode(quantizes=quantized) for one in prepared.modules() if isinstance(one, DerivedBias)})
    in_float = nullcontext() if quantized else warning_if_trained(prepared, "it is being calibrated")
    calls: list[nn.Module] = []
    hook = prepared.register_forward_pre_hook(lambda module, _: calls.append(module))
    try:
        with in_modes(modes), watched(prepared, beside), in_float:
            yield
    finally:
        hook.remove()
    # Float tensors may all be in forward modes that were not run; quantizers are reached by every batch.
    reached = bool(calls) if only_float else any(watch.called for watch in watchers.values())
    if (beside if only_float else watchers) and not reached:
        raise RangeError("calibrate a model", "no batch was run through it", "give it at least one batch")
    found = {quantizer: watch.qparams() for quantizer, watch in watchers.items() if watch.called}
    ranges = {one: qparams for one, watch in beside.items() if (qparams := watch.qparams()) is not None}
    for quantizer, qparams in found.items():
        quantizer.initialize(qparams)
        quantizer.widening = watchers[quantizer].widening
        quantizer.starts = watchers[quantizer].starts()
    weights = sum_of_weights(prepared) if ranges else 0
    for one, qparams in ranges.items():
        one.keep(qparams, weights)


class _Watch:
    """Observes the inputs of one quantizer."""

    def __init__(self, quantizer: Quantizer):
        name, options = quantizer.observer
        self.observer: Observer = OBSERVERS[name](quantizer.start_scheme, name=quantizer.name, **options)
        self.called = False
        self._quantizer = quantizer
        self._widened: QParams | None = None
        self.widening: float | None = None
        self._once = quantizer.role != "activation"  # a weight is the same in every batch

    def __call__(self, x: Tensor) -> None:
        if self._once and self.called:
            return
        self.observer.observe(x)
        self.called = True
        if self._quantizer.pairs is not None:
            self._widen(x.detach())

    def _widen(self, weight: Tensor) -> None:
        measured = self.observer.qparams()
        self._widened = self._quantizer.widened(measured, weight)
        self.widening = float((self._widened.scale / measured.scale).mean())

    def qparams(self) -> QParams:
        return self.observer.qparams() if self._widened is None else self._widened

    def starts(self) -> tuple[QParams, ...]:
        """The candidate ranges, if the observer leaves the choice; scales for pairs have none."""
        if not isinstance(self.observer, Start) or self._widened is not None:
            return ()
        return self.qparams(), *self.observer.alternatives()


class _WatchBeside:
    """Measures a tensor that stays float. One that cannot be on a grid, as masks of Inf, has no range, and that is no
    error here."""

    def __init__(self, one: FloatRange):
        name, options = one.observer
        self._observer: Observer = OBSERVERS[name](one.scheme, name=one.name, **options)
        self.called = self.seen = False

    def __call__(self, x: Tensor) -> None:
        self.called = True
        if isinstance(x, Tensor) and x.is_floating_point():
            with suppress(DetentError):
                self._observer.observe(x)
                self.seen = True

    def qparams(self) -> QParams | None:
        with suppress(DetentError):
            return self._observer.qparams() if self.seen else None
        return None

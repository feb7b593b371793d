"""Ranges of activations as a part of calibrating: the whole of what was seen, or the mean range of a sample.

A few samples may reach far beyond all others (in MobileNetV2, five times as far), and the whole range then leaves the
others with few codes. Clipping at the mean of the samples' extremes suits such networks and harms those whose samples
are alike. No tensor tells by itself which it is, so the outputs decide.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from detent.algorithms.common.batches import noise_of, outputs_of
from detent.algorithms.common.floating import as_float, evaluating
from detent.algorithms.common.snapshot import Snapshot
from detent.graph import PreparedModel, quantizers_of
from detent.numerics import PerTensor, QParams, choose_qparams
from detent.observers.ranks import over_ranks
from detent.quantizers import Quantizer

__all__ = ["SampleRange", "choose_ranges", "observing_sample_ranges"]

_NOTE = "activations clipped at the mean range of samples: "
_WIDE = 2  # times the mean range: as far as this, a whole range costs one bit and no sample stands out
_CLEAR_GAIN = 0.8  # of the noise, 1 dB: the minimum gain for a choice by a few samples


class SampleRange:
    """The minimum and maximum of a tensor, averaged over samples. Samples lie along the first axis."""

    def __init__(self, quantizer: Quantizer):
        self.quantizer = quantizer
        self._total = torch.zeros(3, dtype=torch.float64)

    def __call__(self, module: nn.Module, args: tuple[Any, ...]) -> None:
        """A forward pre-hook of the quantizer."""
        del module
        x: Tensor = args[0].detach()
        if x.numel() == 0:
            return
        rows = x.reshape(len(x) if x.ndim > 1 else 1, -1)
        low, high = rows.amin(1), rows.amax(1)  # torch.aminmax along an axis takes 15 times as long
        samples = torch.stack([low, high, torch.ones_like(low)]).double()
        self._total = self._total.to(x.device) + samples.sum(1)

    def qparams(self) -> QParams | None:
        """Over all ranks; None if there was no sample."""
        low, high, count = over_ranks(self._total.to(_device(self.quantizer)), "sum")
        if count == 0:
            return None
        return choose_qparams((low / count).float(), (high / count).float(), self.quantizer.start_scheme)


@contextmanager
def observing_sample_ranges(prepared: PreparedModel) -> Iterator[list[SampleRange]]:
    """Inside the block, per-sample ranges of activations that use their whole range are observed."""
    found = [SampleRange(quantizer) for quantizer in quantizers_of(prepared) if _has_whole_range(quantizer)]
    handles = [each.quantizer.register_forward_pre_hook(each) for each in found]
    try:
        yield found
    finally:
        for handle in handles:
            handle.remove()


def choose_ranges(prepared: PreparedModel, found: Sequence[SampleRange], batches: Sequence[Any]) -> bool:
    """Clip every activation to its mean range if that brings the outputs on `batches` clearly nearer to the float ones.

    A note of the Plan says so. In a distributed job, every rank passes its own batches.
    """
    clipped = {each.quantizer: qparams for each in found if (qparams := each.qparams()) is not None}
    whole = Snapshot([tensor for quantizer in clipped for tensor in quantizer.state_dict(keep_vars=True).values()])
    taken = False
    if any(_is_wide(quantizer, qparams) for quantizer, qparams in clipped.items()):
        device = _device(found[0].quantizer)
        with evaluating(prepared):
            with as_float(prepared):
                wanted = outputs_of(prepared, batches)
            before = noise_of(wanted, outputs_of(prepared, batches), device)
            for quantizer, qparams in clipped.items():
                quantizer.initialize(qparams)
            taken = noise_of(wanted, outputs_of(prepared, batches), device) < _CLEAR_GAIN * before
        if not taken:
            whole.restore()
    prepared.plan = prepared.plan.with_note(_NOTE, f"{len(clipped)} tensors" if taken else "")
    return taken


def _is_wide(quantizer: Quantizer, mean: QParams) -> bool:
    return bool((quantizer.qparams().scale > _WIDE * mean.scale).any())


def _has_whole_range(quantizer: Quantizer) -> bool:
    """Whether the quantizer has one float scale measured from the minimum to the maximum. With a scale per channel, or
    power-of-two scales, clipping gains too little."""
    scheme = quantizer.scheme
    measured = quantizer.role == "activation" and quantizer.observer[0] == "minmax"
    return measured and isinstance(scheme.granularity, PerTensor) and scheme.scale == "float"


def _device(quantizer: Quantizer) -> torch.device:
    held: Tensor = next(iter(quantizer.state_dict().values()))
    return held.device

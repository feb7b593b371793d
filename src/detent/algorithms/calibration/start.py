"""Initial ranges for training: the best choice per tensor need not be the best at the outputs.

Clipping shifts the mean of a tensor, and a network that averages over an image keeps that shift, while noise without a
shift averages out. So the outputs decide, separately for weights and activations.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import Any

from detent.algorithms.common.batches import noise_of, outputs_of
from detent.algorithms.common.floating import as_float, evaluating
from detent.graph import PreparedModel, quantizers_of
from detent.quantizers import Quantizer

__all__ = ["JUDGING_ROWS", "choose_start"]

JUDGING_ROWS = 32
"""How many rows of calibration data are enough to choose by."""


def choose_start(prepared: PreparedModel, batches: Sequence[Any]) -> None:
    """Initialize the quantizers that have `starts` with the one whose outputs on `batches` are nearest to the float
    ones.

    All weights use the same start, and all activations. In a distributed job, every rank passes its own batches.
    """
    open_ones = [quantizer for quantizer in quantizers_of(prepared) if quantizer.starts]
    if not open_ones:
        return
    device = open_ones[0].starts[0].scale.device
    with evaluating(prepared):
        with as_float(prepared):
            wanted = outputs_of(prepared, batches)
        noises = {}
        candidates = range(len(open_ones[0].starts))
        for choice in product(candidates, repeat=2):
            _take(open_ones, choice)
            noises[choice] = noise_of(wanted, outputs_of(prepared, batches), device)
    _take(open_ones, min(noises, key=lambda choice: noises[choice]))
    for quantizer in open_ones:
        quantizer.starts = ()


def _take(quantizers: Sequence[Quantizer], choice: tuple[int, ...]) -> None:
    for quantizer in quantizers:
        quantizer.initialize(quantizer.starts[choice[quantizer.role == "activation"]])

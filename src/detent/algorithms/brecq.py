"""BRECQ and QDrop: blocks reconstructed as a whole, the rounding of their weights and their activation scales together.

Li et al., "BRECQ", ICLR 2021; Wei et al., "QDrop", ICLR 2022. QDrop is BRECQ with quantization dropped at random: the
share `drop` of a block's inputs is taken from the float model, and activations inside it are quantized with the
probability of their own quantizer.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from detent.algorithms.adaround import why_not
from detent.algorithms.common.blocks import blocks_of
from detent.algorithms.common.layers import layers_of
from detent.algorithms.common.piecewise import LeftAlone, piece_by_piece
from detent.algorithms.common.reconstruction import Choice, Reconstruction, reconstruct, rounding_and_scales
from detent.algorithms.common.refusals import needs_quantizer
from detent.algorithms.common.report import Change, Report
from detent.algorithms.common.walk import Walk
from detent.graph import PreparedModel
from detent.quantizers import AdaRound

__all__ = ["block_by_block", "brecq", "qdrop"]


def brecq(
    prepared: PreparedModel,
    batches: Iterable[Any],
    *,
    steps: int = 2000,
    batch: int = 32,
    rate: float = 3e-2,
    scale_rate: float = 1e-3,
    penalty: float = 30.0,
    warm_up: float = 0.2,
    seed: int = 0,
) -> Report:
    """Reconstruct the blocks of a calibrated model, one after another, with the inputs that the quantized ones give."""
    needs_quantizer(prepared, "brecq", AdaRound)
    options = Reconstruction(
        steps=steps, batch=batch, rate=rate, scale_rate=scale_rate, penalty=penalty, warm_up=warm_up, seed=seed
    )
    return block_by_block(prepared, batches, "brecq", options, rounding_and_scales)


def qdrop(
    prepared: PreparedModel,
    batches: Iterable[Any],
    *,
    drop: float = 0.5,
    steps: int = 2000,
    batch: int = 32,
    rate: float = 3e-2,
    scale_rate: float = 1e-3,
    penalty: float = 30.0,
    warm_up: float = 0.2,
    seed: int = 0,
) -> Report:
    """Reconstruct the blocks of a calibrated model with quantization dropped at random."""
    needs_quantizer(prepared, "qdrop", AdaRound)
    options = Reconstruction(
        steps=steps,
        batch=batch,
        rate=rate,
        scale_rate=scale_rate,
        penalty=penalty,
        warm_up=warm_up,
        drop=drop,
        seed=seed,
    )
    return block_by_block(prepared, batches, "qdrop", options, rounding_and_scales)


def block_by_block(
    prepared: PreparedModel, batches: Iterable[Any], algorithm: str, options: Reconstruction, choose: Choice
) -> Report:
    """Every block of every graph, in order; the report of it, recorded with the model."""

    def blocks(walk: Walk) -> Iterator[Change | LeftAlone]:
        layers = layers_of(walk.region, walk.path, walk.mode)
        if choose is rounding_and_scales:
            yield from (LeftAlone(layer.name, reason) for layer in layers if (reason := why_not(layer)))
        for block in blocks_of(walk.graph, walk.modules, layers):
            walk.to(block.nodes[0])
            yield reconstruct(walk, block, options, choose)

    return piece_by_piece(prepared, batches, algorithm, blocks)

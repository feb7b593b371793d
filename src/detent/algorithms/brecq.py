"""BRECQ and QDrop: block-wise reconstruction that learns the rounding of weights together with activation scales.

Li et al., "BRECQ", ICLR 2021; Wei et al., "QDrop", ICLR 2022. QDrop is BRECQ with randomly dropped quantization: a
share `drop` of a block's inputs comes from the float model, and activations inside the block are quantized with the
probability of their quantizer.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from detent.algorithms.adaround import why_not
from detent.algorithms.common.blocks import blocks_of
from detent.algorithms.common.layers import layers_of
from detent.algorithms.common.piecewise import Skipped, piece_by_piece
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
    """Reconstruct the blocks of a calibrated model in order, with inputs from the quantized blocks before."""
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
    """Reconstruct the blocks of a calibrated model with randomly dropped quantization."""
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
    """Reconstruct every block of every graph in order; return the report, which is also recorded in the model."""

    def blocks(walk: Walk) -> Iterator[Change | Skipped]:
        layers = layers_of(walk.region, walk.path, walk.mode)
        if choose is rounding_and_scales:
            yield from (Skipped(layer.name, reason) for layer in layers if (reason := why_not(layer)))
        for block in blocks_of(walk.graph, walk.modules, layers):
            walk.to(block.nodes[0])
            yield reconstruct(walk, block, options, choose)

    return piece_by_piece(prepared, batches, algorithm, blocks)

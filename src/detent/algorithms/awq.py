"""AWQ on a prepared model, before it is calibrated: weights that meet large inputs are enlarged, and the inverse is
folded into the norm or the linear layer before, also through the product of a gated unit."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch import Tensor

from detent.algorithms.awq_core import awq_scales
from detent.algorithms.channel_scaling import scale_channels
from detent.algorithms.common.report import Report
from detent.graph import PreparedModel
from detent.progress import progress

__all__ = ["awq"]


@progress("awq")
def awq(prepared: PreparedModel, batches: Iterable[Any], *, grid: int = 20) -> Report:
    """Scale the inputs of linear layers by the strength, of `grid` from 0 to 1, with the least error of their outputs.

    All of it is undone if the outputs of the network get worse. The model is calibrated on a few samples for that:
    calibrate it afterward. Clipping is the observer's: use `mse` below 4 bits.
    """

    def tried(inputs: Tensor, weights: Tensor) -> dict[str, Tensor]:  # noqa: ARG001
        magnitudes = inputs.abs().mean(0)
        return {f"strength {step / grid:g}": awq_scales(magnitudes, step / grid) for step in range(1, grid + 1)}

    return scale_channels(prepared, batches, "awq", tried, through_products=True)

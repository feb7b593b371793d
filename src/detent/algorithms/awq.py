"""AWQ on a prepared model, before calibration: weights with large inputs are scaled up, and the inverse is folded into
the norm or linear layer before, also through the product of a gated unit."""

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
    """Scale the inputs of linear layers by the strength in [0, 1] with the least output error, among `grid` values.

    If the outputs of the network get worse, all changes are undone. To measure that, the model is calibrated on a few
    samples: calibrate it afterwards. Clipping is left to the observer: use `mse` below 4 bits.
    """

    def tried(inputs: Tensor, weights: Tensor) -> dict[str, Tensor]:  # noqa: ARG001
        magnitudes = inputs.abs().mean(0)
        return {f"strength {step / grid:g}": awq_scales(magnitudes, step / grid) for step in range(1, grid + 1)}

    return scale_channels(prepared, batches, "awq", tried, through_products=True)

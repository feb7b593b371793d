"""SmoothQuant on a prepared model before calibration: scales are folded into the norm or layer before linear layers.

The strength alpha is chosen for each place by the output error of its quantized linear layers. If no alpha helps on
held-back data, the place is left unchanged; if the outputs of the network get worse, all changes are undone.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch import Tensor

from detent.algorithms.channel_scaling import scale_channels
from detent.algorithms.common.report import Report
from detent.algorithms.smoothquant_core import smoothing
from detent.graph import PreparedModel
from detent.progress import progress

__all__ = ["smoothquant"]

_ALPHAS = tuple(step / 20 for step in range(1, 20))


@progress("smoothquant")
def smoothquant(prepared: PreparedModel, batches: Iterable[Any], *, alpha: float | None = None) -> Report:
    """Smooth the inputs of linear layers; `alpha` is chosen for each place unless given.

    If the outputs of the network get worse, all changes are undone. To measure that, the model is calibrated on a few
    samples: calibrate it afterwards.
    """

    def tried(inputs: Tensor, weights: Tensor) -> dict[str, Tensor]:
        largest = inputs.abs().amax(0)
        return {
            f"alpha {one:g}": smoothing(largest, weights, one) for one in ([alpha] if alpha is not None else _ALPHAS)
        }

    return scale_channels(prepared, batches, "smoothquant", tried)

"""SmoothQuant on a prepared model, before it is calibrated: what is folded into the norm or layer before linear layers.

The strength alpha is searched for each place by the error of the outputs of its linear layers, quantized as they will
be; where no alpha helps on held-back data, nothing is changed, and nothing at all where the outputs of the network
would be farther from the float ones.
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
    """Smooth the inputs of linear layers; `alpha` is searched for each place unless given.

    All of it is undone if the outputs of the network get worse. The model is calibrated on a few samples for that:
    calibrate it afterward.
    """

    def tried(inputs: Tensor, weights: Tensor) -> dict[str, Tensor]:
        largest = inputs.abs().amax(0)
        return {
            f"alpha {one:g}": smoothing(largest, weights, one) for one in ([alpha] if alpha is not None else _ALPHAS)
        }

    return scale_channels(prepared, batches, "smoothquant", tried)

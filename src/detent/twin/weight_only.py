"""Weight-only quantized networks, on any engine that dequantizes weights before it multiplies."""

from __future__ import annotations

from torch import Tensor

from detent.ir import Encoding, Network
from detent.twin import requantize
from detent.twin.arithmetic import Arithmetic, Step
from detent.twin.lowering import lower

__all__ = ["WeightOnly"]


class WeightOnly(Arithmetic):
    """Weights are dequantized, with one rounding, and multiplied in float."""

    name = "weight_only"
    claim = "float32 sums of the same products, in another order"

    def quantize(self, values: Tensor, encoding: Encoding) -> Tensor:
        return requantize.quantize(values, encoding)

    def lower(self, graph: Network) -> list[Step]:
        return lower(graph, {})

"""The ONNX specification: every operation in float32 between a DequantizeLinear and a QuantizeLinear, nothing fused."""

from __future__ import annotations

from torch import Tensor

from detent.ir import Encoding, Network
from detent.twin import requantize
from detent.twin.arithmetic import Arithmetic, Step
from detent.twin.lowering import lower

__all__ = ["OnnxSpec"]


class OnnxSpec(Arithmetic):
    """QDQ taken literally. Float32 sums have no order that ONNX prescribes, so engines that take QDQ literally too
    still differ where a sum lies on a tie."""

    name = "onnx_spec"
    cpus = ()
    claim = "within 1 LSB per operation: float32 sums are not ordered by the specification"

    def quantize(self, values: Tensor, encoding: Encoding) -> Tensor:
        return requantize.quantize(values, encoding)

    def lower(self, graph: Network) -> list[Step]:
        return lower(graph, {})

"""What ONNX Runtime's arithmetic is on every processor; which kernels it has is the processor's."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping

from torch import Tensor

from detent.deploy import Encoding, QdqGraph
from detent.twin import requantize
from detent.twin.arithmetic import Arithmetic, Maker, Step
from detent.twin.lowering import lower
from detent.twin.onnxruntime_rewrites import rewritten

__all__ = ["OnnxRuntimeFamily"]


class OnnxRuntimeFamily(Arithmetic):
    """Default graph optimizations; quantization as ONNX defines it."""

    @property
    @abstractmethod
    def makers(self) -> Mapping[str, Maker]:
        """The integer kernels, by ONNX operation type."""

    def quantize(self, values: Tensor, encoding: Encoding) -> Tensor:
        return requantize.quantize(values, encoding)

    def rewrite(self, graph: QdqGraph) -> QdqGraph:
        return rewritten(graph)

    def lower(self, graph: QdqGraph) -> list[Step]:
        return lower(graph, self.makers)

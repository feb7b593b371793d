"""ONNX Runtime's CPU provider, default graph optimizations. Which kernels it has is the processor's."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from detent.cpus import CPUS, Cpu
from detent.ir import Encoding, Network
from detent.targets.onnxruntime.arithmetic.arm64 import ARM64_MAKERS
from detent.targets.onnxruntime.arithmetic.rewrites import rewritten
from detent.targets.onnxruntime.arithmetic.x86 import SATURATING_MAKERS, X86_MAKERS
from detent.twin import Arithmetic, Step, requantize
from detent.twin.arithmetic import Maker
from detent.twin.lowering import lower

__all__ = ["OnnxRuntime"]

_CLAIM = (
    "equal where the runtime has an integer kernel; convolutions and products that it runs in float within 1 LSB, "
    "1e-6 of outputs, 1e-4 near ties"
)
_AVX512_CLAIM = f"{_CLAIM}; saturation as on AVX2, derived from the kernels and not run"
_ARM64_CLAIM = (
    "equal for convolutions, matrix products, additions and pools, with versions 1.22 and 1.31.1 under emulation; "
    "float operations within 1 LSB"
)


class OnnxRuntime(Arithmetic):
    """Quantization as ONNX defines it; integer kernels as the CPU has them."""

    name = "onnxruntime"
    cpus = tuple(CPUS)

    def __init__(self, cpu: str | Cpu | None = None):
        super().__init__(cpu)
        arm = self.cpu.name == "arm64"
        self.claim = {"arm64": _ARM64_CLAIM, "avx512": _AVX512_CLAIM}.get(self.cpu.name, _CLAIM)
        x86 = SATURATING_MAKERS if self.cpu.saturates else X86_MAKERS
        self._makers: Mapping[str, Maker] = ARM64_MAKERS if arm else x86

    def quantize(self, values: Tensor, encoding: Encoding) -> Tensor:
        return requantize.quantize(values, encoding)

    def rewrite(self, graph: Network) -> Network:
        return rewritten(graph)

    @property
    def integer_operators(self) -> frozenset[str]:
        return frozenset(self._makers)

    def lower(self, graph: Network) -> list[Step]:
        return lower(graph, self._makers)

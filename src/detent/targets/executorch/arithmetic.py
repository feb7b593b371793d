"""XNNPACK's int8 kernels as ExecuTorch's delegate uses them; what the delegate does not take on integers runs in
float."""

from __future__ import annotations

from torch import Tensor

from detent.cpus import Cpu
from detent.ir import Encoding, Network
from detent.targets.executorch.kernels import ON_INTEGERS, runs_on_integers
from detent.targets.litert.arithmetic.xnnpack import Xnnpack
from detent.targets.litert.file.fusing import fused
from detent.twin import Arithmetic, Step

__all__ = ["ExecuTorchXnnpack"]


class ExecuTorchXnnpack(Arithmetic):
    """The kernels of `xnnpack`, but only where ExecuTorch has an integer kernel: convolutions, linear layers, sums,
    products of two tensors, means of planes, and what moves codes on one grid. Functions, other means and pools, and
    conversions from one grid to another are real numbers in between, each put on its grid by `quantize`."""

    name = "executorch"
    claim = "equal on x86 with ExecuTorch 1.5.1, except for operations that run in float"
    elsewhere = (
        "ExecuTorch 1.5.1 does not load with a torch for arm64 without CUDA; 1.0.1 does, emulated, and 0 of 2,304 "
        "outputs of one network differ"
    )

    def __init__(self, cpu: str | Cpu | None = None):
        super().__init__(cpu)
        self._kernels = Xnnpack(self.cpu)

    def quantize(self, values: Tensor, encoding: Encoding) -> Tensor:
        return self._kernels.quantize(values, encoding)

    @property
    def integer_operators(self) -> frozenset[str]:
        return self._kernels.integer_operators & ON_INTEGERS

    def lower(self, graph: Network) -> list[Step]:
        nodes = fused(graph, before_activation=("Add", "Conv", "ConvTranspose", "Gemm"))
        return self._kernels.lower_nodes(graph, nodes, lambda node: runs_on_integers(graph, node.ops))

"""oneDNN, which torch's engine "x86" convolves with where the CPU has VNNI. Without VNNI all of that engine is FBGEMM;
its linear layers always are, and so are its transposed convolutions as Detent drives it
(`detent.targets.torch_native.engine`)."""

from __future__ import annotations

import torch
from torch import Tensor

from detent.cpus import Cpu
from detent.ir import Encoding, Op
from detent.targets.torch_native.arithmetic.fbgemm import Fbgemm, fbgemm_sums
from detent.targets.torch_native.arithmetic.kernels import AtenArithmetic, inverse, rounded_inside
from detent.twin.accumulate import Accumulator
from detent.twin.arithmetic import Kernel
from detent.twin.requantize import per_channel

__all__ = ["Onednn"]

_MOST_GROUPS = 100
"""Convolutions with more groups stay with FBGEMM."""


class Onednn(AtenArithmetic):
    """`rne(f32(f32(f32(f32(acc) * (sx * sw)) + bias) * f32(1 / sy)) + zy)`: the zero point before the rounding.

    FBGEMM rounds ties otherwise, so that engine "x86" is not the same on every CPU, however small the weights are.
    """

    name = "onednn"
    claim = (
        "within 1 LSB per operation: 1 in 10,000 convolution outputs differ where they lie on ties, 1 in 500,000 else"
    )
    elsewhere = "torch has QNNPACK there, whose arithmetic is qnnpack"

    def __init__(self, cpu: str | Cpu | None = None):
        super().__init__(cpu)
        if self.saturates:
            self.claim = Fbgemm.claim

    def _summed(self, op: Op, sums: Accumulator, bias: Tensor | None, output: Encoding) -> Kernel:
        if self.saturates or op.type != "Conv" or op.groups > _MOST_GROUPS:
            return fbgemm_sums(op, sums, bias, output, saturates=self.saturates)
        scale = per_channel(sums.scale, sums.channels)
        factor, zero_point = inverse(output.scale), int(output.zero_point)

        def kernel(codes: Tensor) -> Tensor:
            real = sums(codes).to(torch.float32) * scale
            return rounded_inside(real if bias is None else real + bias, factor, zero_point)

        return kernel

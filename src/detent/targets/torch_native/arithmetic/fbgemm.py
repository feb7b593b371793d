"""FBGEMM, torch's kernels for servers: float biases, and sums of pairs that saturate."""

from __future__ import annotations

import torch
from torch import Tensor

from detent.ir import Encoding, Op
from detent.targets.torch_native.arithmetic.kernels import AtenArithmetic, rounded_after
from detent.twin.accumulate import Accumulator
from detent.twin.arithmetic import Kernel
from detent.twin.requantize import per_channel
from detent.twin.saturating_pairs import saturate_pairs

__all__ = ["Fbgemm", "fbgemm_sums"]


class Fbgemm(AtenArithmetic):
    """`rne(f32(f32(acc) + bias / (sx * sw)) * (sx * sw / sy)) + zy`, the bias a float that is never an integer.

    With one weight scale the division is a fused multiplication with the reciprocal. Depthwise convolutions add
    products in pairs that saturate at 16 bits on every x86 CPU, all other sums of products on those without
    the VNNI of AVX-512.
    """

    name = "fbgemm"
    claim = "equal, one thread; measured on CPUs with AVX2 (no VNNI) and with AVX-512 VNNI"
    elsewhere = "torch has QNNPACK there, whose arithmetic is qnnpack"

    def _summed(self, op: Op, sums: Accumulator, bias: Tensor | None, output: Encoding) -> Kernel:
        return fbgemm_sums(op, sums, bias, output, saturates=self.saturates)


def fbgemm_sums(op: Op, sums: Accumulator, bias: Tensor | None, output: Encoding, *, saturates: bool) -> Kernel:
    """The kernel of a convolution or linear layer, before clamping."""
    scale = per_channel(sums.scale, sums.channels)
    multiplier, zero_point = scale / float(output.scale), int(output.zero_point)
    accumulate = saturate_pairs(sums, op) if saturates or _is_depthwise(op, sums) else sums

    def kernel(codes: Tensor) -> Tensor:
        total = accumulate(codes).to(torch.float32)
        if bias is not None and sums.scale.size == 1:
            total = (bias.double() * (1 / scale) + total).float()  # one rounding: the compiler fused it
        elif bias is not None:
            total = total + bias / scale
        return rounded_after(total, multiplier, zero_point)

    return kernel


def _is_depthwise(op: Op, sums: Accumulator) -> bool:
    """Whether a convolution runs in FBGEMM's kernel for depthwise ones."""
    if op.type != "Conv" or sums.weights.ndim != 4:
        return False
    outputs, inputs, *kernel = sums.weights.shape
    groups = op.groups
    size = kernel[0]
    return (
        inputs == 1
        and outputs in (groups, 2 * groups)
        and groups % 8 == 0
        and kernel[0] == kernel[1]
        and size in (3, 5, 7)
        and all(stride in (1, 2) for stride in op.attribute("strides", 2))
        and all(dilation == 1 for dilation in op.attribute("dilations", 2))
        and all(pad == (size - 1) // 2 for pad in op.attribute("pads", 2))
    )

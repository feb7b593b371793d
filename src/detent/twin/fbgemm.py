"""FBGEMM, torch's kernels for servers: float biases, and depthwise sums of pairs that saturate."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from detent.deploy import Encoding, Op
from detent.twin.accumulate import Accumulator
from detent.twin.arithmetic import Kernel
from detent.twin.requantize import per_channel
from detent.twin.torch_kernels import AtenArithmetic, rounded_after

__all__ = ["Fbgemm", "fbgemm_sums", "saturates"]

_INT16 = (-32768, 32767)


class Fbgemm(AtenArithmetic):
    """`rne(f32(f32(acc) + bias / (sx * sw)) * (sx * sw / sy)) + zy`, the bias a float that is never an integer.

    With one weight scale the division is a fused multiplication with the reciprocal. Depthwise convolutions add
    products in pairs that saturate at 16 bits, on every x86 CPU; all others do so only without VNNI, which this
    arithmetic does not describe.
    """

    name = "fbgemm"
    claim = "equal, on CPUs with AVX2 or AVX512 and VNNI, one thread"

    def _summed(self, op: Op, sums: Accumulator, bias: Tensor | None, output: Encoding) -> Kernel:
        return fbgemm_sums(op, sums, bias, output)


def fbgemm_sums(op: Op, sums: Accumulator, bias: Tensor | None, output: Encoding) -> Kernel:
    """The kernel of a convolution or linear layer, before clamping."""
    scale = per_channel(sums.scale, sums.channels)
    multiplier, zero_point = scale / float(output.scale), int(output.zero_point)
    accumulate = _in_pairs(op, sums) if saturates(op, sums) else sums

    def kernel(codes: Tensor) -> Tensor:
        total = accumulate(codes).to(torch.float32)
        if bias is not None and sums.scale.size == 1:
            total = (bias.double() * (1 / scale) + total).float()  # one rounding: the compiler fused it
        elif bias is not None:
            total = total + bias / scale
        return rounded_after(total, multiplier, zero_point)

    return kernel


def saturates(op: Op, sums: Accumulator) -> bool:
    """Whether a convolution runs in the depthwise kernel and has a pair of weights that can leave 16 bits there."""
    if op.type != "Conv" or sums.weights.ndim != 4:
        return False
    outputs, inputs, *kernel = sums.weights.shape
    groups = op.attributes.get("group", 1)
    size = kernel[0]
    fast = (
        inputs == 1
        and outputs in (groups, 2 * groups)
        and groups % 8 == 0
        and kernel[0] == kernel[1]
        and size in (3, 5, 7)
        and all(stride in (1, 2) for stride in op.attributes.get("strides", [1, 1]))
        and all(dilation == 1 for dilation in op.attributes.get("dilations", [1, 1]))
        and all(pad == (size - 1) // 2 for pad in op.attributes.get("pads", [0] * 4))
    )
    if not fast:
        return False
    pairs = np.stack([np.abs(pair).sum(axis=(1, 2, 3)) for pair in _pairs(sums)])
    return int(pairs.max()) * 255 > _INT16[1]


def _pairs(sums: Accumulator) -> list[np.ndarray[Any, np.dtype[np.int64]]]:
    """The weights with all but two neighbouring taps set to zero, for each two."""
    taps = sums.weights.reshape(*sums.weights.shape[:2], -1)
    found = []
    for first in range(0, taps.shape[2], 2):
        pair = np.zeros_like(taps)
        pair[:, :, first : first + 2] = taps[:, :, first : first + 2]
        found.append(pair.reshape(sums.weights.shape))
    return found


def _in_pairs(op: Op, sums: Accumulator) -> Callable[[Tensor], Tensor]:
    pairs = _pairs(sums)
    outputs, count = sums.weights.shape[0], len(pairs)
    weights = torch.from_numpy(np.stack(pairs, axis=1).reshape(outputs * count, *sums.weights.shape[1:])).float()
    zero_point = int(sums.input.zero_point)
    correction = torch.from_numpy(sums.weights.sum(axis=(1, 2, 3)) * zero_point).float().reshape(sums.channels)
    strides, groups = op.attributes.get("strides", [1, 1]), op.attributes.get("group", 1)
    pad = op.attributes["pads"][0]

    def accumulate(codes: Tensor) -> Tensor:
        padded = F.pad(codes, [pad] * 4, value=zero_point)
        products = F.conv2d(padded, weights, None, strides, groups=groups)
        batch, _, height, width = products.shape
        kept = products.reshape(batch, outputs, count, height, width).clamp_(*_INT16)
        return kept.sum(2).sub_(correction)

    return accumulate

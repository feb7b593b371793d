"""Qualcomm's Hexagon tensor processor (HTP), fitted to what its emulator gives; how it rounds inside is not published.

What was seen: halves go up everywhere. The sums of products are cut to a few fractional bits before they are
multiplied, by a multiplier of reduced precision; with scales that are powers of two nothing is lost by that.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from detent.deploy import Encoding, Op, QdqGraph
from detent.twin.accumulate import accumulator, bias_codes
from detent.twin.arithmetic import Arithmetic, Step
from detent.twin.float_ops import MOVES
from detent.twin.lowering import chain, lower, move_step
from detent.twin.requantize import clamp_bounds, per_channel

__all__ = ["Htp"]

_CLIPS = ("Relu", "Clip")


class Htp(Arithmetic):
    """Exact sums, scaled in float64, halves up."""

    name = "htp"
    claim = (
        "within 1 LSB per operation of Qualcomm's emulator for uint8: about 5 % of the outputs of convolutions and "
        "linear layers differ, and none with power-of-two scales; a softmax is up to 2 off, and so was one convolution "
        "of MobileNetV2"
    )

    def quantize(self, values: Tensor, encoding: Encoding) -> Tensor:
        if not encoding.per_tensor:
            scale = encoding.along(encoding.scale, values.ndim, tuple(values.shape))
            zero_point = encoding.along(encoding.zero_point, values.ndim, tuple(values.shape))
            divided = values / torch.from_numpy(np.array(scale, np.float32))
            return _half_up(divided.double(), torch.from_numpy(np.array(zero_point, np.float64)), encoding)
        return _half_up(values.double() / float(encoding.scale), int(encoding.zero_point), encoding)

    def lower(self, graph: QdqGraph) -> list[Step]:
        moves = dict.fromkeys(MOVES, move_step)
        weighted = dict.fromkeys(("Conv", "ConvTranspose", "Gemm", "MatMul"), _weighted)
        return lower(graph, {**moves, **weighted})


def _half_up(codes: Tensor, zero_point: Tensor | int, encoding: Encoding) -> Tensor:
    return codes.add_(0.5).floor_().add_(zero_point).clamp_(encoding.qmin, encoding.qmax).to(torch.float32)


def _weighted(graph: QdqGraph, op: Op) -> Step | None:
    sums = accumulator(graph, op, bias_codes(graph, op))
    made = chain(graph, op, _CLIPS)
    has_float_bias = len(op.inputs) > 2 and op.inputs[2] is not None and op.inputs[2].encoding is None
    if sums is None or has_float_bias or made.encoding is None or not made.encoding.per_tensor:
        return None
    encoding = made.encoding
    bounds = clamp_bounds(graph, made.ops[1:], encoding)
    if bounds is None:
        return None
    ratio = per_channel(sums.scale, sums.channels).double() / float(encoding.scale)

    def kernel(codes: Tensor) -> Tensor:
        return _half_up(sums(codes).double() * ratio, int(encoding.zero_point), encoding).clamp_(*bounds)

    return Step(made.ops, (sums.read,), made.writes, kernel)

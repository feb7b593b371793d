"""Qualcomm's Hexagon tensor processor (HTP), as its emulator computes; none of it is published.

`fixed` has the formulas for 8 bits and `wide` those for 16; `steps` says which operations use them.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from detent.ir import Encoding, Network
from detent.targets.qualcomm.arithmetic import fixed as htp_fixed
from detent.targets.qualcomm.arithmetic.steps import INTEGER_OPERATORS, entries, makers
from detent.targets.qualcomm.arithmetic.wide import quantize_wide
from detent.twin import Arithmetic, Step
from detent.twin.lowering import lower

__all__ = ["Htp"]


class Htp(Arithmetic):
    """Sums of products are cut to 3 or 4 bits behind the point and multiplied by 11 bits; halves go up."""

    name = "htp"
    cpus = ()
    claim = (
        "equal to Qualcomm's emulator (QNN 2.7.0) for uint8; fitted, and counted as operations in float: within 1/8 of "
        "a step before it is rounded (average pools whose windows overlap, bounds inside of a grid, leaky ReLUs), "
        "within 1 LSB (softmax on a grid of 1/256, layer norms, bilinear resizes, joins of what is converted, and for "
        "uint16 convolutions, linear layers, sums, joins and averages side by side); what the file leaves in float, "
        "and a join with a multiple, was up to 2 off, a Hardtanh after a convolution up to 11; nothing is claimed of "
        "others for uint16"
    )

    def quantize(self, values: Tensor, encoding: Encoding) -> Tensor:
        if encoding.per_tensor and encoding.dtype == "uint8":
            return htp_fixed.quantize(values, encoding)
        if encoding.per_tensor and encoding.dtype == "uint16":
            return quantize_wide(values, encoding)
        scale = np.array(encoding.along(encoding.scale, values.ndim, tuple(values.shape)), np.float32)
        zero_point = np.array(encoding.along(encoding.zero_point, values.ndim, tuple(values.shape)), np.float64)
        codes = (values / torch.from_numpy(scale)).double().add_(0.5).floor_().add_(torch.from_numpy(zero_point))
        return codes.clamp_(encoding.qmin, encoding.qmax).to(torch.float32)

    @property
    def integer_operators(self) -> frozenset[str]:
        return INTEGER_OPERATORS

    def lower(self, graph: Network) -> list[Step]:
        return [*entries(graph), *lower(graph, makers(graph))]

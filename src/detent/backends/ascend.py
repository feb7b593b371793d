"""Huawei Ascend, quantized by AMCT records."""

from __future__ import annotations

from detent.backends.backend import Backend, takes
from detent.backends.offer import Offer
from detent.numerics import PerChannel, PerTensor, Rounding

__all__ = ["ASCEND"]

ASCEND = Backend(
    name="ascend",
    about="Huawei Ascend",
    weight=Offer(granularities=(PerChannel, PerTensor), roundings=(Rounding.HALF_AWAY,)),
    per_tensor_weights=("linear",),
    # Written as offset_d = zero point - 128.
    activation=Offer(signed=(False, True), symmetric=(False, True), roundings=(Rounding.HALF_AWAY,)),
    # A record holds a scale for what a layer takes in and for its weight, and none for what it gives.
    rules=takes("conv", "conv_transpose", "linear", "avgpool"),
    shares=(),
    files=("onnx", "ascend_record"),
)

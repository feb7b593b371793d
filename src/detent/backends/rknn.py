"""Rockchip NPU."""

from __future__ import annotations

from detent.backends.backend import FUSED, MOVES, Backend, both, chains
from detent.backends.offer import Offer
from detent.numerics import PerChannel, PerTensor

__all__ = ["RKNN"]

RKNN = Backend(
    name="rknn",
    about="Rockchip RKNN",
    weight=Offer(narrow=(True, False), granularities=(PerChannel, PerTensor)),
    # Affine int8, where PPQ has uint8. The simulator gives a symmetric tensor another scale, so there is no such offer.
    activation=Offer(symmetric=(False,)),
    bias="int32",
    rules=both(
        "conv",
        "linear",
        "matmul",
        "add",
        "mul",
        "concat",
        "avgpool",
        "global_avgpool",
        "relu",
        "relu6",
        "clip",
        "leaky_relu",
        "sigmoid",
    ),
    fusions=(*FUSED, *chains(("add",))),
    shares=(*MOVES, "resize"),
    quantize_outputs=True,
    files=("onnx", "rknn", "ppq_json"),
)

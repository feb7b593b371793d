"""Tengine."""

from __future__ import annotations

from detent.backends.backend import FUSED, MOVES, Backend, both, chains
from detent.backends.offer import Offer

__all__ = ["TENGINE"]

TENGINE = Backend(
    name="tengine",
    about="Tengine, uint8",
    # One scale for a tensor, symmetric or affine: the tool that reads the scale file refuses channels.
    weight=Offer(signed=(False, True), symmetric=(False, True)),
    activation=Offer(signed=(False, True), symmetric=(False, True)),
    bias="int32",
    # PPQ's and MQBench's lists together.
    rules=both(
        "conv",
        "conv_transpose",
        "linear",
        "matmul",
        "add",
        "mul",
        "concat",
        "avgpool",
        "global_avgpool",
        "batchnorm",
        "relu",
        "relu6",
        "clip",
        "leaky_relu",
        "prelu",
        "hardswish",
        "sigmoid",
        "softmax",
        "resize",
    ),
    # The parameters of a ReLU are copied to the convolution before it.
    fusions=(*FUSED, *chains(("add",))),
    shares=MOVES,
    quantize_outputs=True,
    files=("onnx", "tengine_scale"),
)

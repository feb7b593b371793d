"""ONNX Runtime on a CPU (MLAS)."""

from __future__ import annotations

from detent.backends.backend import FUSED, Backend, Offer, Rule
from detent.numerics import PerChannel, PerTensor

__all__ = ["ONNXRUNTIME"]

_BOTH = Rule(inputs=True, output=True)

# u8 activations: a symmetric s8 tensor after a ReLU makes ORT run the convolution in float (the ReLU is dropped
# only where the following zero point is the least code). Convolutions are quantized before an add, or they run in
# float too.
ONNXRUNTIME = Backend(
    name="onnxruntime",
    about="ONNX Runtime, CPU provider: affine u8 activations, symmetric s8 weights per channel, int32 bias",
    weight=Offer(granularities=(PerChannel, PerTensor), narrow=(True, False)),
    activation=Offer(signed=(False, True), symmetric=(False, True)),
    bias="int32",
    rules=dict.fromkeys(
        (
            "conv",
            "linear",
            "matmul",
            "add",
            "mul",
            "concat",
            "global_avgpool",
            "avgpool",
            "sigmoid",
            "leaky_relu",
            "softmax",
            "maxpool",
            "resize",
            "reshape",
            "transpose",
        ),
        _BOTH,
    ),
    fusions=(*FUSED, ("add", "relu")),
    quantize_outputs=True,
    arithmetic="onnxruntime",
    files=("onnx",),
    engine="onnxruntime",
)

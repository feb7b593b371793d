"""Arm Compute Library. (The `acl` of the MQBench paper is Huawei's: that is `ascend`.)"""

from __future__ import annotations

from detent.backends.backend import FUSED, MOVES, Backend, both, chains
from detent.backends.offer import Offer
from detent.numerics import PerChannel, PerTensor

__all__ = ["ACL"]

ACL = Backend(
    name="acl",
    about="Arm Compute Library",
    # QSYMM8_PER_CHANNEL, or the QASYMM8_SIGNED and QASYMM8 of activations.
    weight=Offer(
        narrow=(True, False),
        granularities=(PerChannel, PerTensor),
        also=(Offer(signed=(True, False), symmetric=(False, True)),),
    ),
    activation=Offer(signed=(True, False), narrow=(False,), symmetric=(False, True)),
    bias="int32",
    rules=both(
        "conv",
        "conv_transpose",
        "linear",
        "add",
        "sub",
        "mul",
        "concat",
        "avgpool",
        "global_avgpool",
        "mean",
        "relu",
        "relu6",
        "clip",
        "leaky_relu",
        "prelu",
        "hardswish",
        "sigmoid",
        "tanh",
        "softmax",
    ),
    fusions=(*FUSED, *chains(("add", "sub", "mul"))),
    shares=(*MOVES, "pad", "resize"),
    # Kernels with a built-in output scale, as in LiteRT.
    ranges={"sigmoid": (0.0, 255 / 256), "softmax": (0.0, 255 / 256), "tanh": (-1.0, 127 / 128)},
    quantize_outputs=True,
    opset=21,  # as for LiteRT: a .tflite file has the operations that came after 17, such as Gelu
    arithmetic="tflite_reference",
    files=("tflite_micro", "acl"),
)

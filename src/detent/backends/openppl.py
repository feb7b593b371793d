"""OpenPPL: CUDA and DSP, and SenseTime's 16-bit activations."""

from __future__ import annotations

from detent.backends.backend import FUSED, MOVES, Backend, both, chains
from detent.backends.offer import Offer
from detent.backends.ppq import CUDA_KINDS, DSP_KINDS
from detent.numerics import PerChannel, PerTensor

__all__ = ["PPL_CUDA", "PPL_DSP", "PPL_W8A16"]

# MQBench has affine numbers here and then writes only the greatest magnitude: the engine is symmetric, as in PPQ.
PPL_CUDA = Backend(
    name="ppl_cuda",
    about="OpenPPL, CUDA",
    weight=Offer(granularities=(PerChannel, PerTensor)),
    activation=Offer(),
    bias="int32",
    rules=both(*CUDA_KINDS),
    fusions=(*FUSED, *chains(("conv", "linear"), ("sigmoid", "leaky_relu"), norm=True), *chains(("add",))),
    shares=(*MOVES, "resize"),
    quantize_outputs=True,
    files=("onnx", "ppl_json"),
)

PPL_DSP = Backend(
    name="ppl_dsp",
    about="OpenPPL, Hexagon DSP",
    weight=Offer(signed=(False,), symmetric=(False,)),
    activation=Offer(signed=(False,), symmetric=(False,)),
    # PPQ simulates 30 bits of the 32, against underflow of its float32 scales; so with all its other platforms.
    bias="int32",
    rules=both(*DSP_KINDS),
    fusions=(*FUSED, *chains(("add",))),
    shares=(*MOVES, "pad", "resize"),
    quantize_outputs=True,
    files=("onnx", "ppl_dsp_json"),
)

# Known from MQBench only, which leaves the bias float.
PPL_W8A16 = Backend(
    name="ppl_w8a16",
    about="OpenPPL, 8-bit weights and 16-bit activations",
    weight=Offer(signed=(False,), symmetric=(False,)),
    activation=Offer(bits=(16,), signed=(False,), symmetric=(False,)),
    rules=both(
        "conv", "conv_transpose", "linear", "add", "mul", "avgpool", "global_avgpool", "batchnorm", "prelu", "resize"
    ),
    fusions=(*FUSED, *chains(("add", "mul"))),
    quantize_outputs=True,
    files=("onnx", "ppl_w8a16_json"),
)

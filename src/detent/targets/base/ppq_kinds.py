"""What PPQ quantizes on several platforms alike."""

from __future__ import annotations

__all__ = ["CUDA_KINDS", "DSP_KINDS"]

CUDA_KINDS = (
    "conv",
    "linear",
    "add",
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
    "sigmoid",
)
"""PPL_CUDA, and with matmul METAX."""

DSP_KINDS = (
    "conv",
    "conv_transpose",
    "linear",
    "add",
    "sub",
    "mul",
    "div",
    "maximum",
    "concat",
    "avgpool",
    "global_avgpool",
    "mean",
    "relu",
    "relu6",
    "clip",
    "leaky_relu",
    "prelu",
    "sigmoid",
    "softmax",
)
"""PPL_DSP, SNPE and QNN share one quantizer in PPQ."""

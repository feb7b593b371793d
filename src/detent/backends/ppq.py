"""What PPQ quantizes on several platforms alike."""

from __future__ import annotations

__all__ = ["DSP_KINDS"]

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

"""The kinds that PPQ quantizes on several platforms."""

from __future__ import annotations

from detent.graph import AVERAGE_POOLS, CLIPPING

__all__ = ["CUDA_KINDS", "DSP_KINDS", "SHIFTING_KINDS"]

_ALL = ("conv", "linear", "add", "mul", "concat", *AVERAGE_POOLS, *CLIPPING, "leaky_relu", "prelu", "sigmoid")

CUDA_KINDS = (*_ALL, "mean")
"""PPL_CUDA, and with matmul METAX."""

SHIFTING_KINDS = (*_ALL, "sub", "div", "maximum")
"""Chips that shift instead of multiplying: NXP, Xilinx FPGA, Espressif."""

DSP_KINDS = (*SHIFTING_KINDS, "conv_transpose", "mean", "softmax")
"""PPL_DSP, SNPE and QNN share one quantizer in PPQ."""

"""What chips that shift instead of multiplying have in common in PPQ's tables: NXP, Xilinx FPGA, Espressif."""

from __future__ import annotations

from detent.planning import SupportedSchemes, quantize_io

__all__ = ["POWER_OF_TWO", "RULES"]

POWER_OF_TWO = SupportedSchemes(scales=("power_of_two",), observer="pow2_sse")

RULES = quantize_io(
    "conv",
    "linear",
    "add",
    "sub",
    "mul",
    "div",
    "maximum",
    "concat",
    "avgpool",
    "global_avgpool",
    "relu",
    "relu6",
    "clip",
    "leaky_relu",
    "prelu",
    "sigmoid",
)

"""What chips that shift instead of multiplying have in common in PPQ's tables: NXP, Xilinx FPGA, Espressif."""

from __future__ import annotations

from detent.planning import Offer, both

__all__ = ["POWER_OF_TWO", "RULES"]

POWER_OF_TWO = Offer(scales=("power_of_two",), observer="pow2_sse")

RULES = both(
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

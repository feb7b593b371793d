"""Shared by targets with power-of-two scales, as in PPQ: NXP, Xilinx FPGA, Espressif."""

from __future__ import annotations

from detent.planning import SupportedSchemes

__all__ = ["POWER_OF_TWO"]

POWER_OF_TWO = SupportedSchemes(scales=("power_of_two",), observer="pow2_sse")

"""What chips that shift instead of multiplying have in common in PPQ's tables: NXP, Xilinx FPGA, Espressif."""

from __future__ import annotations

from detent.planning import SupportedSchemes

__all__ = ["POWER_OF_TWO"]

POWER_OF_TWO = SupportedSchemes(scales=("power_of_two",), observer="pow2_sse")

"""AMD (Xilinx) DPUs, through Vitis AI."""

from __future__ import annotations

__all__: list[str] = []

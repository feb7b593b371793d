"""Xilinx FPGA, as PPQ has it."""

from __future__ import annotations

from detent.planning import FUSED, MOVES, Backend, SupportedSchemes, chains, quantize_io
from detent.targets.base import Target
from detent.targets.base.power_of_two import POWER_OF_TWO
from detent.targets.base.ppq_kinds import SHIFTING_KINDS

__all__ = ["FPGA", "TARGET"]

FPGA = Backend(
    name="fpga",
    about="Xilinx FPGA, as PPQ has it",
    weight=POWER_OF_TWO,
    activation=POWER_OF_TWO,
    bias="int32",
    bias_schemes=SupportedSchemes(bits=(32,), scales=("power_of_two",)),
    rules=quantize_io(*SHIFTING_KINDS, "conv_transpose"),
    fusions=(*FUSED, *chains(("add",))),
    passthrough=(*MOVES, "pad", "resize"),
    quantize_outputs=True,
    arithmetic="onnx_spec",
    files=("onnx", "ppq_json"),
)

TARGET = Target(backend=FPGA)

"""What the planner reads of the chip, and where the rest is."""

from __future__ import annotations

from detent.numerics import Rounding
from detent.planning import FUSED, Backend, SupportedSchemes, chains, quantize_io
from detent.targets import Target

__all__ = ["TARGET"]

TARGET = Target(
    backend=Backend(
        name="imaginary",
        about="an imaginary chip that shifts",
        weight=SupportedSchemes(bits=(4,), scales=("power_of_two",), observer="pow2_sse"),
        activation=SupportedSchemes(scales=("power_of_two",), roundings=(Rounding.HALF_UP,), observer="pow2_sse"),
        bias="int32",  # on the scale of input times weight, which is a power of two as well
        rules=quantize_io("conv", "linear", "add"),
        fusions=(*FUSED, *chains(("add",))),
        passthrough=("relu", "reshape"),
        quantize_outputs=True,
        arithmetic="imaginary",
        files=("onnx", "imaginary_json"),
        engine="imaginary",
    ),
    formats={"imaginary_json": "imaginary_chip.file:FORMAT"},
    engine="imaginary_chip.engine:ImaginaryEngine",
    arithmetics={"imaginary": "imaginary_chip.arithmetic:Shifts"},
)

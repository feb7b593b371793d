"""Espressif ESP-DL."""

from __future__ import annotations

from dataclasses import replace

from detent.numerics import PerChannel, PerTensor, Rounding
from detent.planning import FUSED, MOVES, Backend, SupportedSchemes, chains, quantize_inputs, quantize_io
from detent.targets.base import Target
from detent.targets.base.power_of_two import POWER_OF_TWO
from detent.targets.base.ppq_kinds import SHIFTING_KINDS

__all__ = ["ESP_DL", "TARGET"]

# The ESP32-P4. For an S3 or C chip ask for per-tensor weights and half_up; the biases of an S3 have 20 bits.
ESP_DL = Backend(
    name="esp_dl",
    about="Espressif ESP-DL",
    weight=replace(
        POWER_OF_TWO,
        bits=(8, 16),
        granularities=(PerChannel, PerTensor),
        roundings=(Rounding.HALF_EVEN, Rounding.HALF_UP),
    ),
    activation=replace(POWER_OF_TWO, bits=(8, 16), roundings=(Rounding.HALF_EVEN, Rounding.HALF_UP)),
    bias="int32",
    bias_schemes=SupportedSchemes(
        bits=(32, 20), scales=("power_of_two",), roundings=(Rounding.HALF_EVEN, Rounding.HALF_UP)
    ),
    rules={
        **quantize_io(
            *SHIFTING_KINDS,
            "conv_transpose",
            "matmul",
            "minimum",
            "mean",
            "sum",
            "hardswish",
            "hardsigmoid",
            "silu",
            "gelu",
            "tanh",
            "elu",
            "layernorm",
            "rmsnorm",
        ),
        # The output of a softmax is float.
        **quantize_inputs("softmax", "log_softmax"),
    },
    fusions=(*FUSED, *chains(("add",))),
    passthrough=(*MOVES, "pad", "resize"),
    quantize_outputs=True,
    arithmetic="onnx_spec",
    files=("onnx", "espdl"),
)

TARGET = Target(backend=ESP_DL, formats={"espdl": "detent.targets.esp_dl.file:FORMAT"})

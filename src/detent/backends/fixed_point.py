"""Chips that shift instead of multiplying: NXP, Xilinx FPGA, Espressif."""

from __future__ import annotations

from dataclasses import replace

from detent.backends.backend import FUSED, MOVES, Backend, both, chains, takes
from detent.backends.offer import Offer
from detent.numerics import PerChannel, PerTensor, Rounding

__all__ = ["ESP_DL", "FPGA", "NXP"]

_POWER_OF_TWO = Offer(scales=("power_of_two",), observer="pow2_sse")

_RULES = both(
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

NXP = Backend(
    name="nxp",
    about="NXP, power-of-two scales",
    weight=replace(_POWER_OF_TWO, granularities=(PerChannel, PerTensor), roundings=(Rounding.HALF_AWAY,)),
    activation=replace(_POWER_OF_TWO, roundings=(Rounding.HALF_UP,)),
    # PPQ's NxpInputRoundingRefinePass.
    network_input=replace(_POWER_OF_TWO, roundings=(Rounding.HALF_DOWN,)),
    bias="int32",
    bias_offer=Offer(bits=(32,), scales=("power_of_two",), roundings=(Rounding.HALF_AWAY,)),
    rules=_RULES,
    fusions=(*FUSED, *chains(("add",))),
    shares=(*MOVES, "pad", "resize"),
    quantize_outputs=True,
    arithmetic="shift_half_up",
    files=("onnx", "nxp_ranges"),
)

FPGA = Backend(
    name="fpga",
    about="Xilinx FPGA, as PPQ has it",
    weight=_POWER_OF_TWO,
    activation=_POWER_OF_TWO,
    bias="int32",
    bias_offer=Offer(bits=(32,), scales=("power_of_two",)),
    rules={**_RULES, **both("conv_transpose")},
    fusions=(*FUSED, *chains(("add",))),
    shares=(*MOVES, "pad", "resize"),
    quantize_outputs=True,
    arithmetic="onnx_spec",
    files=("onnx", "ppq_json"),
)

# The ESP32-P4. For an S3 or C chip ask for per-tensor weights and half_up; the biases of an S3 have 20 bits.
ESP_DL = Backend(
    name="esp_dl",
    about="Espressif ESP-DL",
    weight=replace(
        _POWER_OF_TWO,
        bits=(8, 16),
        granularities=(PerChannel, PerTensor),
        roundings=(Rounding.HALF_EVEN, Rounding.HALF_UP),
    ),
    activation=replace(_POWER_OF_TWO, bits=(8, 16), roundings=(Rounding.HALF_EVEN, Rounding.HALF_UP)),
    bias="int32",
    bias_offer=Offer(bits=(32, 20), scales=("power_of_two",), roundings=(Rounding.HALF_EVEN, Rounding.HALF_UP)),
    rules={
        **_RULES,
        **both(
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
        # What a softmax gives is float.
        **takes("softmax", "log_softmax"),
    },
    fusions=(*FUSED, *chains(("add",))),
    shares=(*MOVES, "pad", "resize"),
    quantize_outputs=True,
    arithmetic="onnx_spec",
    files=("onnx", "espdl"),
)

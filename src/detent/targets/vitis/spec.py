"""AMD (Xilinx) DPUs, through Vitis AI."""

from __future__ import annotations

from dataclasses import replace

from detent.graph import AVERAGE_POOLS, WEIGHTED
from detent.numerics import Rounding
from detent.planning import FUSED, Backend, SupportedSchemes, chains, quantize_io
from detent.targets.base import Target

__all__ = ["TARGET", "VITIS"]

# The public parser demands all of this of a DPU, also `narrow_range` false, which the document has as true.
_PARAMETER = SupportedSchemes(
    narrow=(False,), scales=("power_of_two",), roundings=(Rounding.HALF_AWAY,), observer="pow2_sse"
)
_ACTIVATION = replace(_PARAMETER, roundings=(Rounding.HALF_UP,), observer="pow2_mode")

VITIS = Backend(
    name="vitis",
    about="AMD DPU, Vitis AI",
    weight=_PARAMETER,
    activation=_ACTIVATION,
    # Inputs are rounded like parameters, and only the exponent that just avoids overflow is tried. MQBench leaves them
    # float, which Vitis AI itself refuses.
    network_input=replace(
        _ACTIVATION, roundings=(Rounding.HALF_AWAY,), observer="pow2_mode", observer_options={"candidates": 1}
    ),
    bias="own",
    bias_schemes=_PARAMETER,
    rules=quantize_io(
        *WEIGHTED, "add", "mul", "concat", *AVERAGE_POOLS, "batchnorm", "relu", "relu6", "leaky_relu", "prelu", "resize"
    ),
    fusions=(*FUSED, *chains(("add",))),
    quantize_outputs=True,
    arithmetic="vitis_dpu",
    files=("onnx", "vitis_quant_info", "mqbench_json"),
)

TARGET = Target(
    backend=VITIS,
    formats={"vitis_quant_info": "detent.targets.vitis.quant_info:FORMAT"},
    arithmetics={"vitis_dpu": "detent.targets.vitis.arithmetic:VitisDpu"},
)

"""ncnn, on x86 and Arm."""

from __future__ import annotations

from detent.numerics import PerChannel, PerTensor, Rounding
from detent.planning import Backend, SupportedSchemes, quantize_inputs
from detent.rewrites.fuse_activation_functions import fuse_activation_functions
from detent.targets.base import Target
from detent.targets.ncnn.split_sum_of_stack import split_sum_of_stack

__all__ = ["NCNN", "TARGET"]

NCNN = Backend(
    name="ncnn",
    about="Tencent ncnn",
    # PPQ gives 3x3 convolutions 6 bits for Winograd; ncnn's own Winograd was measured to be exact with 8.
    weight=SupportedSchemes(narrow=(True,), granularities=(PerChannel, PerTensor), roundings=(Rounding.HALF_AWAY,)),
    activation=SupportedSchemes(narrow=(True,), roundings=(Rounding.HALF_AWAY,)),
    # Numbers become integers only on the way into these; adds, pools and activations run in float.
    rules=quantize_inputs("conv", "linear"),
    passthrough=(),
    conv_axes=(1, 2),
    rewrites=(fuse_activation_functions.name, split_sum_of_stack.name),
    opset=21,
    arithmetic="ncnn",
    files=("ncnn", "ncnn_table"),
    engine="ncnn",
)

TARGET = Target(
    backend=NCNN,
    rewrites=(fuse_activation_functions, split_sum_of_stack),
    formats={
        "ncnn": "detent.targets.ncnn.file.writer:FORMAT",
        "ncnn_table": "detent.targets.ncnn.file.writer:TABLE_FORMAT",
    },
    engine="detent.targets.ncnn.engine:Ncnn",
    arithmetics={"ncnn": "detent.targets.ncnn.arithmetic:Ncnn"},
)

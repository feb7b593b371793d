"""MNN."""

from __future__ import annotations

from detent.graph import AVERAGE_POOLS
from detent.numerics import PerChannel, PerTensor, Rounding
from detent.planning import FUSED, MOVES, Backend, SupportedSchemes, chains, quantize_io
from detent.targets.base import Target

__all__ = ["MNN", "TARGET"]

MNN = Backend(
    name="mnn",
    about="Alibaba MNN",
    # PPQ has one scale for a linear layer; MNN turns it into a convolution, with one for each channel.
    weight=SupportedSchemes(narrow=(True,), granularities=(PerChannel, PerTensor), roundings=(Rounding.HALF_AWAY,)),
    # Symmetric only: with a zero point, an add and its ReLU clamp at 0 instead (99 LSB off).
    activation=SupportedSchemes(narrow=(True,), roundings=(Rounding.HALF_AWAY,)),
    # Written as float, made int32 by the converter; a simulation with int32 biases matched it.
    bias="int32",
    rules=quantize_io("conv", "linear", "add"),
    fusions=(*FUSED, *chains(("add",))),
    # Integer pooling keeps the scale of its input.
    passthrough=(*MOVES, *AVERAGE_POOLS),
    conv_axes=(1, 2),
    quantize_outputs=True,
    arithmetic="mnn",
    files=("onnx", "mnn_compression"),
    engine="mnn",
)

TARGET = Target(
    backend=MNN,
    formats={"mnn_compression": "detent.targets.mnn.writer:FORMAT"},
    engine="detent.targets.mnn.engine:Mnn",
    arithmetics={"mnn": "detent.targets.mnn.arithmetic:Mnn"},
)

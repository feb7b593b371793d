"""MetaX."""

from __future__ import annotations

from detent.numerics import PerChannel, PerTensor
from detent.planning import FUSED, MOVES, Backend, SupportedSchemes, chains, quantize_io
from detent.targets.base import Target
from detent.targets.base.ppq_kinds import CUDA_KINDS

__all__ = ["METAX", "TARGET"]

# PPQ's METAX_INT8_C. Its METAX_INT8_T is affine uint8 with one scale for all tensors and a float bias.
METAX = Backend(
    name="metax",
    about="MetaX, one scale a channel",
    weight=SupportedSchemes(narrow=(True,), granularities=(PerChannel, PerTensor)),
    activation=SupportedSchemes(narrow=(True,)),
    bias="int32",
    rules=quantize_io(*CUDA_KINDS, "matmul"),
    fusions=(*FUSED, *chains(("conv", "linear"), ("sigmoid", "leaky_relu"), norm=True), *chains(("add",))),
    passthrough=(*MOVES, "resize"),
    quantize_outputs=True,
    files=("onnx", "ppq_json"),
)

TARGET = Target(backend=METAX)

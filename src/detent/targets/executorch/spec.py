"""ExecuTorch with the XNNPACK delegate."""

from __future__ import annotations

from detent.graph import CLIPPING, WEIGHTED
from detent.numerics import PerChannel, PerTensor
from detent.planning import FUSED, MOVES, Backend, SupportedSchemes, chains, quantize_io
from detent.targets.base import Target

__all__ = ["EXECUTORCH_XNNPACK", "TARGET"]

EXECUTORCH_XNNPACK = Backend(
    name="executorch_xnnpack",
    about="ExecuTorch, XNNPACK delegate",
    weight=SupportedSchemes(narrow=(True,), granularities=(PerChannel, PerTensor)),
    activation=SupportedSchemes(symmetric=(False, True)),
    # Float in the program, int32 in the delegate.
    bias="int32",
    # What its own quantizer annotates. A mean may have an output scale of its own, though that quantizer shares it.
    rules=quantize_io(*WEIGHTED, "add", "mul", "mean", "global_avgpool"),
    fusions=(*FUSED, *chains(("add", "mul"))),
    passthrough=(*MOVES, "concat", *CLIPPING),
    common_qparams=("concat",),
    quantize_outputs=True,
    opset=21,
    arithmetic="executorch",
    files=("pte",),
    engine="executorch",
)

TARGET = Target(
    backend=EXECUTORCH_XNNPACK,
    formats={"pte": "detent.targets.executorch.program:FORMAT"},
    engine="detent.targets.executorch.engine:ExecuTorch",
    arithmetics={"executorch": "detent.targets.executorch.arithmetic:ExecuTorchXnnpack"},
)

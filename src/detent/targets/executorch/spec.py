"""ExecuTorch with the XNNPACK delegate."""

from __future__ import annotations

from dataclasses import replace

from detent.graph import CLIPPING, WEIGHTED
from detent.numerics import PerChannel, PerGroup, PerTensor
from detent.planning import FUSED, MOVES, Backend, Rule, SupportedSchemes, chains, quantize_io
from detent.targets.base import Target
from detent.targets.base.weight_only import WEIGHT_ONLY

__all__ = ["EXECUTORCH_8DA4W", "EXECUTORCH_XNNPACK", "TARGET", "TARGET_8DA4W"]

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

# What ExecuTorch calls 8da4w: activations get 8 bits for each token while the program runs.
EXECUTORCH_8DA4W = replace(
    WEIGHT_ONLY,
    name="executorch_8da4w",
    about="ExecuTorch, weights in groups of 4 bits; each token is rounded to 8 bits while it runs",
    weight=SupportedSchemes(
        bits=(4,),
        granularities=(PerGroup,),
        group_sizes=(32, 64, 128, 256),
        scales=("bfloat16",),
        also=(SupportedSchemes(bits=(8,), granularities=(PerChannel,)),),
    ),
    rules={"linear": Rule(inputs=False)},
    arithmetic="executorch_8da4w",
    files=("onnx", "pte_8da4w"),
    engine="executorch_8da4w",
)

TARGET_8DA4W = Target(
    backend=EXECUTORCH_8DA4W,
    formats={"pte_8da4w": "detent.targets.executorch.program:FORMAT_8DA4W"},
    engine="detent.targets.executorch.engine:ExecuTorch8da4w",
    arithmetics={"executorch_8da4w": "detent.targets.executorch.rounded_tokens:RoundedTokens"},
)

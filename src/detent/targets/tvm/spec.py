"""Apache TVM, through the quantized operators of ONNX."""

from __future__ import annotations

from detent.graph import AVERAGE_POOLS
from detent.planning import FUSED, MOVES, Backend, SupportedSchemes, chains, quantize_io
from detent.targets.base import Target

__all__ = ["TARGET", "TVM"]

_UINT8 = SupportedSchemes(signed=(False, True), symmetric=(False, True))

# The scheme of MQBench's toolkit. Its paper has symmetric power-of-two scales, which are on offer too.
TVM = Backend(
    name="tvm",
    about="Apache TVM, QLinear operators",
    weight=_UINT8,
    activation=_UINT8,
    bias="int32",
    # Linear layers stay float: ONNX has no quantized operator for them.
    rules=quantize_io("conv", "add", *AVERAGE_POOLS),
    fusions=(*FUSED, *chains(("add",))),
    passthrough=MOVES,
    quantize_outputs=True,
    files=("onnx", "onnx_qlinear"),
)

TARGET = Target(backend=TVM, formats={"onnx_qlinear": "detent.targets.tvm.qlinear:FORMAT"})

"""Checkpoints of compressed-tensors: linear layers with weights of 4 or 8 bits in groups, all else as it was."""

from __future__ import annotations

from detent.numerics import PerGroup
from detent.planning import Backend, Rule, SupportedSchemes
from detent.targets.base import Target

__all__ = ["COMPRESSED_TENSORS", "TARGET"]

COMPRESSED_TENSORS = Backend(
    name="compressed_tensors",
    about="safetensors that transformers and vLLM load",
    weight=SupportedSchemes(
        bits=(4, 8), granularities=(PerGroup,), group_sizes=(32, 64, 128, 256), scales=("float", "float16")
    ),
    activation=SupportedSchemes(),
    rules={"linear": Rule(inputs=False)},
    fusions=(),
    passthrough=(),
    opset=21,
    arithmetic="weight_only",
    files=("onnx", "compressed_tensors"),
)

TARGET = Target(
    backend=COMPRESSED_TENSORS, formats={"compressed_tensors": "detent.targets.compressed_tensors.file:FORMAT"}
)

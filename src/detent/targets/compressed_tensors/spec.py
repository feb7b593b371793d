"""Checkpoints of compressed-tensors: linear layers of 4 or 8 bits in groups, or of E4M3; all else as it was."""

from __future__ import annotations

from dataclasses import replace

from detent.numerics import E4M3Grid, PerChannel, PerGroup
from detent.planning import Rule, SupportedSchemes
from detent.targets.base import Target
from detent.targets.base.weight_only import WEIGHT_ONLY

__all__ = ["COMPRESSED_TENSORS", "TARGET"]

_FLOATS = SupportedSchemes(grids=(E4M3Grid,), granularities=(PerChannel,), scales=("float",))

COMPRESSED_TENSORS = replace(
    WEIGHT_ONLY,
    name="compressed_tensors",
    about="safetensors that transformers and vLLM load",
    weight=SupportedSchemes(
        bits=(4, 8),
        granularities=(PerGroup,),
        group_sizes=(32, 64, 128, 256),
        scales=("float", "float16"),
        also=(_FLOATS,),
    ),
    rules={"linear": Rule(inputs=False)},
    files=("onnx", "compressed_tensors"),
)

TARGET = Target(
    backend=COMPRESSED_TENSORS,
    formats={"compressed_tensors": "detent.targets.compressed_tensors.file:FORMAT"},
    layer_format="detent.targets.compressed_tensors.layers:FORMAT",
)

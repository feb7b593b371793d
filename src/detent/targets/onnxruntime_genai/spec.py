"""ONNX Runtime with weights in blocks: MatMulNBits and GatherBlockQuantized, as in onnxruntime-genai's models."""

from __future__ import annotations

from dataclasses import replace

from detent.numerics import PerGroup
from detent.planning import SupportedSchemes
from detent.targets.base import Target
from detent.targets.base.weight_only import WEIGHT_ONLY

__all__ = ["A8_TARGET", "ONNXRUNTIME_GENAI", "ONNXRUNTIME_GENAI_A8", "TARGET"]

_WEIGHT = SupportedSchemes(
    bits=(4, 8),
    signed=(True, False),
    narrow=(False, True),
    symmetric=(True, False),
    granularities=(PerGroup,),
    group_sizes=(32, 16, 64, 128, 256),  # `blocks.SIZES`: the kernel refuses others
)

ONNXRUNTIME_GENAI = replace(
    WEIGHT_ONLY,
    name="onnxruntime_genai",
    about="ONNX Runtime, weights in blocks",
    weight=_WEIGHT,
    files=("onnx", "matmul_nbits"),
    engine="onnxruntime_genai",
)

TARGET = Target(
    backend=ONNXRUNTIME_GENAI,
    formats={"matmul_nbits": "detent.targets.onnxruntime_genai.file:FORMAT"},
    engine="detent.targets.onnxruntime_genai.engine:OnnxRuntimeGenai",
)

# Accuracy level 4, the default of onnxruntime-genai's model builder: faster, and the activations are rounded.
ONNXRUNTIME_GENAI_A8 = replace(
    ONNXRUNTIME_GENAI,
    name="onnxruntime_genai_a8",
    about="the same; each block of activations is rounded to 8 bits while it runs",
    arithmetic="onnxruntime_genai_a8",
    files=("onnx", "matmul_nbits_a8"),
)

A8_TARGET = Target(
    backend=ONNXRUNTIME_GENAI_A8,
    formats={"matmul_nbits_a8": "detent.targets.onnxruntime_genai.file:A8_FORMAT"},
    arithmetics={"onnxruntime_genai_a8": "detent.targets.onnxruntime_genai.arithmetic:RoundedActivations"},
)

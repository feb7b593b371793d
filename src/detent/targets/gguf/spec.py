"""llama.cpp: weights in blocks of GGUF; what they are multiplied by is rounded to 8 bits while it runs."""

from __future__ import annotations

from dataclasses import replace

from detent.numerics import PerGroup
from detent.planning import SupportedSchemes
from detent.targets.base import Target
from detent.targets.base.weight_only import WEIGHT_ONLY

__all__ = ["GGUF", "TARGET"]

_K_OF_SIX = SupportedSchemes(bits=(6,), granularities=(PerGroup,), group_sizes=(16,), scales=("super8",))
_K_OF_FOUR = SupportedSchemes(
    bits=(4,), signed=(False,), symmetric=(False,), granularities=(PerGroup,), group_sizes=(32,), scales=("super6",)
)
_WEIGHT = SupportedSchemes(
    bits=(8, 4, 5), granularities=(PerGroup,), group_sizes=(32,), scales=("float16",), also=(_K_OF_SIX, _K_OF_FOUR)
)

GGUF = replace(
    WEIGHT_ONLY,
    name="gguf",
    about="llama.cpp, weights in blocks",
    weight=_WEIGHT,
    arithmetic="gguf",
    files=("onnx", "gguf"),
    engine="llama_cpp",
    mix="detent.targets.gguf.mix:mixed",
)

TARGET = Target(
    backend=GGUF,
    formats={"gguf": "detent.targets.gguf.file:FORMAT"},
    engine="detent.targets.gguf.engine:LlamaCpp",
    arithmetics={"gguf": "detent.targets.gguf.arithmetic:Ggml"},
)

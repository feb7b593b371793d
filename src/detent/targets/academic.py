"""The setting used in papers to compare algorithms, without a chip."""

from __future__ import annotations

from dataclasses import replace
from typing import get_args

from detent.graph import WEIGHTED
from detent.numerics import GRIDS, PerChannel, PerGroup, PerTensor, Rounding, ScaleType
from detent.planning import Backend, Rule, SupportedSchemes, quantize_inputs
from detent.targets.base import Target

__all__ = ["ACADEMIC", "ACADEMIC_NLP", "NLP_TARGET", "TARGET"]

_ANY = SupportedSchemes(
    grids=tuple(GRIDS.values()),
    bits=(8, 2, 3, 4, 5, 6, 7, 16),
    signed=(True, False),
    symmetric=(True, False),
    granularities=(PerTensor, PerChannel, PerGroup),
    scales=get_args(ScaleType),
    roundings=tuple(Rounding),
)

# Batch norms are left alone, so that nothing is folded into a quantized weight. Unsigned numbers after a ReLU are
# MQBench's `ada_sign`: "real symmetric hardware wastes a bit".
ACADEMIC = Backend(
    name="academic",
    about="papers on vision: inputs and weights of convolutions and linear layers",
    weight=_ANY,
    activation=replace(_ANY, auto_sign=True),
    rules=quantize_inputs(*WEIGHTED),
    fusions=(),
    passthrough=(),
    first_last_bits=8,
    batch_norm=-1,
)

TARGET = Target(backend=ACADEMIC)

ACADEMIC_NLP = Backend(
    name="academic_nlp",
    about="papers on language: linear layers, matrix products, embeddings",
    weight=_ANY,
    activation=replace(_ANY, auto_sign=True),
    rules={**quantize_inputs("linear", "matmul"), "embedding": Rule(inputs=False)},
    fusions=(),
    passthrough=(),
    batch_norm=-1,
)

NLP_TARGET = Target(backend=ACADEMIC_NLP)

"""The deployment level: what is true of a network and its ONNX operators on every target."""

from __future__ import annotations

from detent.ir.attributes import attribute_value, changed_defaults, schema_defaults
from detent.ir.ops import OPS, OpSpec, Trait, ops_with
from detent.ir.patterns import clip_bounds, constant_values, is_output, sole_float_reader, sole_reader

__all__ = [
    "OPS",
    "OpSpec",
    "Trait",
    "attribute_value",
    "changed_defaults",
    "clip_bounds",
    "constant_values",
    "is_output",
    "ops_with",
    "schema_defaults",
    "sole_float_reader",
    "sole_reader",
]

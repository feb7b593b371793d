"""The backend of language models: weights are quantized, and activations are not."""

from __future__ import annotations

from detent.planning import Backend, Rule, SupportedSchemes

__all__ = ["WEIGHT_ONLY"]

WEIGHT_ONLY = Backend(
    name="weight_only",
    about="quantized weights, float activations",
    weight=SupportedSchemes(),
    activation=SupportedSchemes(),
    rules={"linear": Rule(inputs=False), "embedding": Rule(inputs=False)},
    fusions=(),
    passthrough=(),
    opset=21,
    arithmetic="weight_only",
)
"""What targets replace the name, the weights and the files of."""

"""Figures of operations for Model Explorer (github.com/google-ai-edge/model-explorer), as "node data".

One file holds one figure: `{"name": ..., "results": {key: {"value": number}}, "gradient": [...]}`. A key is the name of
a tensor that a node gives, which Model Explorer finds in every graph that says the names of its tensors.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from detent.report.facts import Facts, Node

__all__ = ["node_data"]

_GOOD, _BAD = "#1b7f8c", "#dd6f2c"
_FIGURES: dict[str, tuple[str, Callable[[Node], float | None], bool]] = {
    "bits": ("Bits", lambda node: node.bits, False),
    "sqnr": ("SQNR of the result (dB)", lambda node: node.sqnr, False),
    "alone": ("SQNR of the outputs if it alone is quantized (dB)", lambda node: node.alone, False),
    "lsb": ("Most difference (LSB)", lambda node: node.lsb, True),
}
"""What each is called, how it is read, and whether more is worse."""


def node_data(facts: Facts) -> dict[str, dict[str, Any]]:
    """The content of a file for each figure that is known, by its short name."""
    found: dict[str, dict[str, Any]] = {}
    for short, (name, read, rising) in _FIGURES.items():
        values = [(node.outputs[0], read(node)) for node in facts.nodes]
        results = {key: {"value": value} for key, value in values if value is not None and math.isfinite(value)}
        if results:
            low, high = (_GOOD, _BAD) if rising else (_BAD, _GOOD)
            gradient = [{"stop": 0, "bgColor": low}, {"stop": 1, "bgColor": high}]
            found[short] = {"name": name, "results": results, "gradient": gradient}
    return found

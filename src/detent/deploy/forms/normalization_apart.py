"""A normalization of codes, with an operation before it that changes nothing.

OpenVINO normalizes codes without a zero point as they are, since their scale makes no difference to numbers that are
divided by their deviation; but it does to the small number that is added to the variance. Where the variance is not
far above it, 53 steps of the grid behind were seen. What it does not take for codes it normalizes as real numbers.
"""

from __future__ import annotations

from detent.deploy.forms.editing import Editing, Found
from detent.deploy.forms.integers import dequantized_by, has_zero_point
from detent.deploy.forms.maximum_with_least import maximum_with_least
from detent.deploy.forms.original import attributes_of

__all__ = ["normalization_apart"]

_NORMALIZATIONS = ("GroupNormalization", "InstanceNormalization", "LayerNormalization")


def normalization_apart(editing: Editing) -> None:
    """Every normalization of codes without a zero point."""
    for node in editing.nodes:
        if node.op_type not in _NORMALIZATIONS or editing.is_gone(node):
            continue
        dequantize = dequantized_by(editing, node.input[0])
        if dequantize is not None and not has_zero_point(editing, dequantize):
            stem = node.output[0]
            apart = maximum_with_least(editing, node.input[0], stem)
            editing.write(node.op_type, [apart, *node.input[1:]], stem, name=node.name, **attributes_of(node))
            editing.replace(Found((node,), node.input[0], (), stem, ()))

"""A maximum or minimum over axes whose result is quantized, with an operation in between that changes nothing.

OpenVINO quantizes such a result in the kernel that finds it, and that kernel keeps what it has found so far in the
type of the codes, as whole real numbers before they are scaled. Negative ones become 0; all 255 steps of the grid
behind were seen. A maximum with the least float32 number is no part of that kernel.
"""

from __future__ import annotations

from detent.deploy.forms.editing import Editing, Found
from detent.deploy.forms.maximum_with_least import maximum_with_least
from detent.deploy.forms.original import attributes_of

__all__ = ["extremes_apart"]

_EXTREMES = ("GlobalMaxPool", "ReduceMax", "ReduceMin")
# What the plugin runs in the kernel of a reduction too, and shapes, which it takes for an option of it.
_TAKEN_IN = frozenset(
    {"Abs", "Add", "Clip", "Div", "Elu", "Exp", "Gelu", "HardSigmoid", "HardSwish", "LeakyRelu", "Mish", "Mul", "PRelu"}
    | {"Relu", "Round", "Sigmoid", "Softplus", "Sqrt", "Sub", "Tanh"}
    | {"Flatten", "Identity", "Reshape", "Squeeze", "Unsqueeze"}
)


def extremes_apart(editing: Editing) -> None:
    """Every maximum or minimum over axes that is quantized, perhaps behind functions of each number."""
    for node in editing.nodes:
        if node.op_type not in _EXTREMES or editing.is_gone(node) or not _is_quantized(editing, node.output[0]):
            continue
        stem = node.output[0]
        made = editing.write(node.op_type, list(node.input), stem, name=node.name, **attributes_of(node))
        maximum_with_least(editing, made, stem)
        editing.replace(Found((node,), node.input[0], (), stem, ()))


def _is_quantized(editing: Editing, tensor: str) -> bool:
    return any(
        reader.op_type == "QuantizeLinear" or (reader.op_type in _TAKEN_IN and _is_quantized(editing, reader.output[0]))
        for reader in editing.readers(tensor)
    )

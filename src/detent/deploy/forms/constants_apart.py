"""A sum or product with constants for channels behind a convolution in groups, with an operation in between that
changes nothing.

OpenVINO runs such an operation in the kernel of the convolution. Where that multiplies matrices group by group, because
the channels of a group do not fill its vectors, it takes constants of other channels: up to 197 steps of the grid
behind were seen.
"""

from __future__ import annotations

import onnx

from detent.deploy.forms.editing import Editing, Found
from detent.deploy.forms.maximum_with_least import maximum_with_least
from detent.deploy.forms.original import attributes_of

__all__ = ["constants_apart"]

_OF_TWO = ("Add", "Div", "Mul", "PRelu", "Sub")
_FUNCTIONS = frozenset(
    {"Clip", "DequantizeLinear", "Elu", "Gelu", "HardSigmoid", "HardSwish", "Identity", "LeakyRelu", "Mish"}
    | {"QuantizeLinear", "Relu", "Sigmoid", "Softplus", "Tanh"}
)


def constants_apart(editing: Editing) -> None:
    """Every operation with several constant numbers, on what a convolution in groups of several channels gave."""
    for node in editing.nodes:
        data = None if editing.is_gone(node) else _data(editing, node)
        if data is None or not _from_groups(editing, data):
            continue
        stem = node.output[0]
        apart = maximum_with_least(editing, data, stem)
        inputs = [apart if name == data else name for name in node.input]
        editing.write(node.op_type, inputs, stem, name=node.name, **attributes_of(node))
        editing.replace(Found((node,), data, (), stem, ()))


def _data(editing: Editing, node: onnx.NodeProto) -> str | None:
    """What is not constant of the two that an operation reads, if the other holds several numbers."""
    if node.op_type not in _OF_TWO:
        return None
    held = {name: editing.constant(name) for name in node.input}
    several = any(constant is not None and constant.codes.size > 1 for constant in held.values())
    data = [name for name, constant in held.items() if constant is None]
    return data[0] if several and len(data) == 1 else None


def _from_groups(editing: Editing, tensor: str) -> bool:
    maker = editing.maker(tensor)
    while maker is not None and (maker.op_type in _FUNCTIONS or _data(editing, maker) is not None):
        maker = editing.maker(_data(editing, maker) or maker.input[0])
    if maker is None or maker.op_type != "Conv":
        return False
    groups, weight = int(attributes_of(maker).get("group", 1)), editing.constant(maker.input[1])
    if groups == 1 or weight is None:
        return False
    outputs, inputs = weight.codes.shape[:2]
    return not (inputs == 1 and outputs == groups)

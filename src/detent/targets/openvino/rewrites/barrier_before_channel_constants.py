"""Insert a fusion barrier between a grouped convolution and an elementwise operation with a constant per channel.

The kernel that goes wrong multiplies matrices group by group, where the channels of a group do not fill its vectors.
"""

from __future__ import annotations

import onnx

from detent.ir import Trait, ops_with
from detent.rewrites import Editing, rewrite
from detent.rewrites.editing import Found
from detent.rewrites.original import attribute_of, attributes_of
from detent.targets.openvino.rewrites.fusion_barrier import fusion_barrier

__all__ = ["barrier_before_channel_constants"]

_OF_TWO = ops_with(Trait.ARITHMETIC) | {"PRelu"}
_FUNCTIONS = frozenset(
    {"Clip", "DequantizeLinear", "Elu", "Gelu", "HardSigmoid", "HardSwish", "Identity", "LeakyRelu", "Mish"}
    | {"QuantizeLinear", "Relu", "Sigmoid", "Softplus", "Tanh"}
)


@rewrite(
    why=(
        "OpenVINO fuses per-channel constants into a grouped convolution and takes those of other channels: up to"
        " 197 LSB off"
    ),
    needed_for=("openvino<=2026.4.1",),
)
def barrier_before_channel_constants(editing: Editing) -> None:
    """Matches an elementwise operation with several constants behind a convolution in groups of several channels."""
    for node in editing.nodes:
        data = None if editing.is_gone(node) else _data(editing, node)
        if data is None or not _from_groups(editing, data):
            continue
        stem = node.output[0]
        guarded = fusion_barrier(editing, data, stem)
        inputs = [guarded if name == data else name for name in node.input]
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
    groups, weight = int(attribute_of(maker, "group")), editing.constant(maker.input[1])
    if groups == 1 or weight is None:
        return False
    outputs, inputs = weight.codes.shape[:2]
    return not (inputs == 1 and outputs == groups)

"""Insert a fusion barrier between a grouped convolution and an elementwise operation with a constant per channel.

The kernel that goes wrong multiplies matrices group by group, where the channels of a group do not fill its vectors.
"""

from __future__ import annotations

from detent.ir import Op, Operand, Trait, ops_with
from detent.rewrites import NetworkEditor, rewrite
from detent.targets.openvino.rewrites.fusion_barrier import fusion_barrier

__all__ = ["barrier_before_channel_constants"]

_OF_TWO = ops_with(Trait.ARITHMETIC) | {"PRelu"}
_FUNCTIONS = ops_with(Trait.CLIPS) | ops_with(Trait.ACTIVATION) | {"Identity"}


@rewrite(
    why=(
        "OpenVINO fuses per-channel constants into a grouped convolution and takes those of other channels: up to"
        " 197 LSB off"
    ),
    needed_for=("openvino<=2026.4.1",),
)
def barrier_before_channel_constants(editor: NetworkEditor) -> None:
    """Matches an elementwise operation with several constants behind a convolution in groups of several channels."""
    for op in editor.ops(*_OF_TWO):
        data = _data(editor, op)
        if data is not None and _from_groups(editor, data):
            guarded = fusion_barrier(editor, data, op.outputs[0])
            editor.copied(op, [guarded if read == data else read for read in op.inputs])
            editor.replace(op)


def _data(editor: NetworkEditor, op: Op) -> Operand | None:
    """What is not constant of the two that an operation reads, if the other holds several numbers."""
    if op.type not in _OF_TWO:
        return None
    held = {read: editor.constant(read) for read in op.reads}
    several = any(constant is not None and constant.array.size > 1 for constant in held.values())
    data = [read for read, constant in held.items() if constant is None]
    return data[0] if several and len(data) == 1 else None


def _from_groups(editor: NetworkEditor, read: Operand) -> bool:
    """Whether such a convolution gave a tensor, through grids and what OpenVINO fuses into it."""
    producer = editor.producer(read)
    while producer is not None and (producer.type in _FUNCTIONS or _data(editor, producer) is not None):
        producer = editor.producer(_data(editor, producer) or producer.reads[0])
    if producer is None or producer.type != "Conv":
        return False
    weight = editor.constant(producer.inputs[1])
    if producer.groups == 1 or weight is None:
        return False
    outputs, inputs = weight.array.shape[:2]
    return not (inputs == 1 and outputs == producer.groups)

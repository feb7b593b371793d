"""Insert a fusion barrier between an operation whose kernel mixes up channels and constants for its channels.

One such kernel multiplies matrices group by group, where the channels of a group do not fill its vectors. The other is
a reduction that leaves its axes out: it looks for channels on an axis of what it reads.
"""

from __future__ import annotations

from detent.ir import Op, Operand, Trait, ops_with
from detent.rewrites import NetworkEditor, rewrite
from detent.targets.openvino.rewrites.fusion_barrier import fusion_barrier

__all__ = ["barrier_before_channel_constants"]

_OF_CHANNELS = ops_with(Trait.ARITHMETIC) | {"BatchNormalization", "PRelu"}
_REDUCTIONS = ops_with(Trait.REDUCES)
_FUNCTIONS = ops_with(Trait.CLIPS) | ops_with(Trait.ACTIVATION) | {"Identity"}


@rewrite(
    why=(
        "OpenVINO fuses per-channel constants into a grouped convolution or a reduction and takes those of other "
        "channels: up to 197 LSB off"
    ),
    needed_for=("openvino<=2026.4.1",),
)
def barrier_before_channel_constants(editor: NetworkEditor) -> None:
    """Matches an elementwise operation with several constants behind a convolution in groups of several channels, or
    behind a reduction that leaves its axes out."""
    for op in editor.ops(*_OF_CHANNELS):
        data = _data(editor, op)
        if data is not None and _channels_are_mixed_up(editor, data):
            guarded = fusion_barrier(editor, data, op.outputs[0])
            editor.copied(op, [guarded if read == data else read for read in op.inputs])
            editor.replace(op)


def _data(editor: NetworkEditor, op: Op) -> Operand | None:
    """The input of an operation that depends on the network's inputs, if the other one has several elements."""
    if op.type not in _OF_CHANNELS:
        return None
    data = [read for read in op.reads if read.tensor in editor.network.from_inputs]
    several = any(_holds_several(editor.shape(read.tensor)) for read in op.reads if read not in data)
    return data[0] if several and len(data) == 1 else None


def _holds_several(shape: tuple[int | str, ...] | None) -> bool:
    return shape is None or any(size != 1 for size in shape)


def _channels_are_mixed_up(editor: NetworkEditor, read: Operand) -> bool:
    """Whether such an operation gave a tensor, through grids and what OpenVINO fuses into it."""
    producer = editor.producer(read)
    while producer is not None and (producer.type in _FUNCTIONS or _data(editor, producer) is not None):
        producer = editor.producer(_data(editor, producer) or producer.reads[0])
    if producer is None:
        return False
    if producer.type in _REDUCTIONS:
        return not producer.attribute("keepdims")
    return producer.type == "Conv" and _is_in_groups(editor, producer)


def _is_in_groups(editor: NetworkEditor, producer: Op) -> bool:
    """Whether a convolution has groups of several channels."""
    weight = editor.constant(producer.inputs[1])
    if producer.groups == 1 or weight is None:
        return False
    outputs, inputs = weight.array.shape[:2]
    return not (inputs == 1 and outputs == producer.groups)

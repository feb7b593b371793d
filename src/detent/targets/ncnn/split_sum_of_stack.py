"""Split the sum of a stack of tensors into sums of two."""

from __future__ import annotations

from detent.ir import Operand
from detent.rewrites import NetworkEditor, rewrite

__all__ = ["split_sum_of_stack"]


@rewrite(
    why=(
        "In ncnn there is no axis for what is stacked in front of the batch, or beside four others "
        "(`torch.stack(x).sum(0)`)"
    ),
    needed_for=("ncnn<=1.0.20261020",),
)
def split_sum_of_stack(editor: NetworkEditor) -> None:
    """Matches a ReduceSum over the one axis along which tensors are stacked, all of them read without a grid."""
    for op in editor.ops("ReduceSum"):
        axes = editor.constant(op.optional(1))
        stack = _stacked(editor, op.reads[0])
        if stack is None or axes is None or axes.array.tolist() != [stack[0]] or op.attribute("keepdims"):
            continue
        total, *others = stack[1]
        for other in others:
            total = editor.write("Add", [total, other], op.outputs[0])
        editor.replace(op)


def _stacked(editor: NetworkEditor, read: Operand) -> tuple[int, list[Operand]] | None:
    """The axis, and what each Unsqueeze in front of the Concat reads: two or more."""
    concat = None if read.encoding is not None else editor.producer(read)
    if concat is None or concat.type != "Concat" or len(concat.reads) < 2:
        return None
    axis, found = int(concat.attribute("axis")), []
    for part in concat.reads:
        op = None if part.encoding is not None else editor.producer(part)
        axes = None if op is None or op.type != "Unsqueeze" else editor.constant(op.optional(1))
        if op is None or axes is None or axes.array.tolist() != [axis] or op.reads[0].encoding is not None:
            return None
        found.append(op.reads[0])
    return axis, found

"""Restores the operation that a rewrite replaced."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from detent.ir import Encoding, Layout, Op, Operand
from detent.rewrites.network_editor import NetworkEditor
from detent.rewrites.original import Original

__all__ = ["Undo", "producer_of", "put_back", "reader_of", "restored_constant"]

Change = Callable[[npt.NDArray[Any]], npt.NDArray[Any]]
Undo = Callable[[NetworkEditor, Op, Original], None]
"""Writes the original in the place of an operation and of those behind it that only moved data for it; the ones before
it are left without a reader."""


def put_back(
    editor: NetworkEditor,
    op: Op,
    original: Original,
    inputs: Sequence[Operand],
    *,
    op_type: str | None = None,
    functions: Sequence[Op] = (),
    last: Op | None = None,
) -> None:
    """Write the original of `op`, followed by `functions`, in place of everything up to `last`."""
    made = editor.write(op_type or op.type, inputs, op.outputs[0], name=op.name, **original.attributes)
    editor.activated(made, functions)
    editor.replace(last or op)


def restored_constant(
    editor: NetworkEditor, read: Operand, change: Change, channels: Change | None = None, axis: int = 0
) -> Operand:
    """A constant as it was before; `channels` maps the codes along the channel axis, which is `axis` afterwards."""
    held = editor.constant(read)
    assert held is not None
    encoding = held.encoding
    if encoding is not None and encoding.axis is not None and channels is not None:
        encoding = Encoding(channels(encoding.scale), channels(encoding.zero_point), encoding.dtype, axis)
    return editor.rearranged(held, Layout.SAME, np.ascontiguousarray(change(held.array)), encoding)


def producer_of(editor: NetworkEditor, read: Operand) -> Op:
    made = editor.producer(read)
    assert made is not None
    return made


def reader_of(editor: NetworkEditor, op: Op) -> Op:
    """The only reader of a result, because nothing else reads intermediate results of a rewritten operation."""
    return editor.network.readers(op.outputs[0])[0][0]

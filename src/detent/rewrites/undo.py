"""Undoes rewrites that store the original operation."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from detent.ir import Encoding, Layout, Network, Op, Operand
from detent.rewrites.conv_transpose_as_conv import moves_of, one_phase, transposed_kernel
from detent.rewrites.densify_conv_transpose import DENSE, grouped_kernel
from detent.rewrites.network_editor import NetworkEditor
from detent.rewrites.original import Original
from detent.rewrites.space_to_depth_strided_conv import MOVES, NAME, in_pixels

__all__ = ["has_rewrites", "undo"]

Change = Callable[[npt.NDArray[Any]], npt.NDArray[Any]]


def has_rewrites(network: Network) -> bool:
    """Whether an operation of `network` keeps what it was before a rewrite."""
    return any(Original.of(op) is not None for op in network.ops)


def undo(network: Network) -> Network:
    """`network`, quantized or in float, with every operation that keeps an `Original` put back.

    A linear layer stays a product of matrices, which is as fast in float.
    """
    editor = NetworkEditor(network)
    for op in network.ops:
        original = Original.of(op)
        if original is not None:
            _put_back(editor, op, original)
    return editor.finished()


def _put_back(editor: NetworkEditor, op: Op, original: Original) -> None:
    """The operations that only moved data for it are left without a reader."""
    data, weight, *biases = op.reads
    op_type, functions, last = op.type, [], op
    if original.form == NAME:
        weight = _parameter(editor, weight, partial(in_pixels, original))
        for _ in range(MOVES):
            data = _producer(editor, data).reads[0]
    elif original.form == DENSE:
        channels = original.weight[1]
        weight = _parameter(editor, weight, partial(grouped_kernel, original), lambda values: values[:channels], axis=1)
    else:
        op_type = "ConvTranspose"
        kernel, shared = partial(transposed_kernel, original), partial(one_phase, original, shared=True)
        weight = _parameter(editor, weight, kernel, shared, axis=1)
        phase = partial(one_phase, original)
        biases = [_parameter(editor, bias, phase, phase) for bias in biases]
        moves = moves_of(original)
        while moves and (reader := _reader(editor, last)).type in ("Relu", "Clip"):
            functions.append(reader)
            last = reader
        for _ in range(moves):
            last = _reader(editor, last)
    made = editor.write(op_type, [data, weight, *biases], op.outputs[0], name=op.name, **original.attributes)
    editor.activated(made, functions)
    editor.replace(last)


def _parameter(
    editor: NetworkEditor, read: Operand, change: Change, channels: Change | None = None, axis: int = 0
) -> Operand:
    """A constant as it was before; `channels` changes what its codes have for each channel, along `axis` then."""
    held = editor.constant(read)
    assert held is not None
    encoding = held.encoding
    if encoding is not None and encoding.axis is not None and channels is not None:
        encoding = Encoding(channels(encoding.scale), channels(encoding.zero_point), encoding.dtype, axis)
    return editor.rearranged(held, Layout.SAME, np.ascontiguousarray(change(held.array)), encoding)


def _producer(editor: NetworkEditor, read: Operand) -> Op:
    made = editor.producer(read)
    assert made is not None
    return made


def _reader(editor: NetworkEditor, op: Op) -> Op:
    """The one operation that reads a result: nothing else reads what is inside of a rewritten operation."""
    return editor.network.readers(op.outputs[0])[0][0]

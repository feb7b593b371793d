"""Paddings: LiteRT's operators know "same" and "valid"; everything else is a PAD before them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from detent.ir import Op
from detent.ir.windows import SlidingWindow
from detent.targets.litert.file.lowering import TfliteLowering

__all__ = ["SAME", "VALID", "explicit_pads", "padded", "same_pads"]

SAME, VALID = 0, 1
Pads = tuple[tuple[int, int], ...]
"""Before and after, for each spatial axis."""


def same_pads(sizes: Sequence[int], kernel: Sequence[int], strides: Sequence[int], dilations: Sequence[int]) -> Pads:
    """The padding of "same": the least that gives ceil(size / stride) outputs, with an odd one at the end.

    >>> same_pads((224,), (3,), (2,), (1,)), same_pads((8,), (3,), (1,), (1,))
    (((0, 1),), ((1, 1),))
    """
    none = (0,) * len(sizes)
    window = SlidingWindow(tuple(kernel), tuple(strides), tuple(dilations), none, none, "SAME_UPPER")
    return window.resolve(sizes).pads


def explicit_pads(op: Op, sizes: Sequence[int], kernel: Sequence[int]) -> Pads:
    """The paddings of an ONNX operation as numbers."""
    return SlidingWindow.of(op.attributes, kernel).resolve(sizes).pads


def padded(low: TfliteLowering, index: int, pads: Pads, *, value: int | float | None = None) -> int:
    """The tensor (channels last) padded along rows and columns with zeros or `value`."""
    source = low.tensors[index]
    around = ((0, 0), *pads, (0, 0))
    shape = [size + sum(pad) for size, pad in zip(source.shape, around, strict=True)]
    signature = [size if size < 0 else full for size, full in zip(source.signature, shape, strict=True)]
    made = low.temporary(f"{source.name}_padded", index, shape, signature)
    table = low.constant("paddings", np.array(around, np.int32))
    if value is None:
        low.emit("PAD", [index, table], [made])
    else:
        filler = low.constant("filler", np.array(value, source.dtype).reshape(()), source.encoding)
        low.emit("PADV2", [index, table, filler], [made])
    return made

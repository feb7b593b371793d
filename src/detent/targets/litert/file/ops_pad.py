"""Pads of every mode, on codes as on real numbers."""

from __future__ import annotations

import numpy as np

from detent.ir import Operand
from detent.targets.litert.file.fusing import TfliteNode
from detent.targets.litert.file.lowering import Lowerer, TfliteLowering, Variant, last_order, refusal
from detent.targets.litert.file.ops_shape import constants, moved, picked, taken

__all__ = ["PADS"]

Around = list[tuple[int, int]]


def pad(low: TfliteLowering, node: TfliteNode) -> None:
    """What is cut, and what is repeated from the border or from the other end, is picked by its place."""
    op, read = node.main, node.main.inputs[0]
    assert read is not None
    around, mode = _around(low, node), str(op.attribute("mode"))
    if any(around[0]) and low.signature(read.tensor)[0] < 0:
        raise refusal(op, "it pads the batch", "pad other axes")
    last = low.made_last(read)
    index, variant = taken(low, read, last=last)
    if last:
        around = [around[axis] for axis in last_order(len(around))]
    cuts = any(value < 0 for pair in around for value in pair)
    if mode in ("edge", "wrap") or cuts:
        index = _picked(low, node, index, around, mode)
        around = [(max(before, 0), max(behind, 0)) for before, behind in around]
        if mode != "constant":
            low.alias(node.output, variant, index)
            return
    _emit(low, node, index, variant, around, mode)


def _around(low: TfliteLowering, node: TfliteNode) -> Around:
    """How much goes before and behind each axis."""
    op, read = node.main, node.main.inputs[0]
    assert read is not None
    rank = low.rank(read.tensor)
    amounts = constants(low, node, 1) or [int(value) for value in op.attributes.get("pads", [])]
    axes = constants(low, node, 3)
    axes = list(range(rank)) if axes is None else [axis % rank for axis in axes]
    around = [(0, 0)] * rank
    for position, axis in enumerate(axes):
        around[axis] = (amounts[position], amounts[position + len(axes)])
    return around


def _picked(low: TfliteLowering, node: TfliteNode, index: int, around: Around, mode: str) -> int:
    picks = {}
    for axis, (before, behind) in enumerate(around):
        size = low.tensors[index].shape[axis]
        places = np.arange(size)[max(-before, 0) : size - max(-behind, 0)]
        if mode != "constant":
            places = np.pad(places, (max(before, 0), max(behind, 0)), mode=mode)  # type: ignore[call-overload]
        if len(places) != size or (places != np.arange(size)).any():
            picks[axis] = places
    return picked(low, index, picks, node.output)


def _emit(low: TfliteLowering, node: TfliteNode, index: int, variant: Variant, around: Around, mode: str) -> None:
    op = node.main
    table = low.constant("paddings", np.array(around, np.int32))
    value = op.optional(2)
    filler = 0.0 if value is None else _number(low, node, value)
    made = moved(low, node.output, variant, index)
    if mode == "reflect":
        low.emit("MIRROR_PAD", [index, table], [made], mode=0)
    elif filler == 0.0:
        low.emit("PAD", [index, table], [made])
    else:
        held = np.array(filler, np.float32)
        if variant.encoding is not None:
            held = variant.encoding.quantize(held).astype(variant.encoding.dtype)
        low.emit("PADV2", [index, table, low.constant("filler", held, variant.encoding)], [made])


def _number(low: TfliteLowering, node: TfliteNode, read: Operand) -> float:
    values = low.values(read)
    if values is None:
        raise refusal(node.main, "what it pads with is computed", "pad with a constant")
    return float(np.ravel(values)[0])


PADS: dict[str, Lowerer] = {"Pad": pad}

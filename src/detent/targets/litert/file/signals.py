"""Signals (batch, channels, length) for operators that slide over images: each is an image of one row."""

from __future__ import annotations

from typing import Any

from detent.ir import Encoding, Op
from detent.targets.litert.file.fusing import TfliteNode
from detent.targets.litert.file.lowering import TfliteLowering, Variant

__all__ = ["each", "give", "image"]


def each(op: Op, attribute: str, spatial: int) -> list[int]:
    """An attribute with one number for rows and one for columns; a signal has one row."""
    given = [int(value) for value in op.attribute(attribute, spatial)]
    return given if spatial == 2 else [1, *given]


def image(low: TfliteLowering, index: int, spatial: int) -> int:
    """A signal as an image with one row."""
    if spatial == 2:
        return index
    source = low.tensors[index]
    shape, signature = (source.shape[0], 1, *source.shape[1:]), (source.signature[0], 1, *source.signature[1:])
    made = low.temporary(f"{source.name}_image", index, shape, signature)
    low.emit("RESHAPE", [index, low.integers("shape", signature)], [made], newShape=list(signature))
    return made


def give(
    low: TfliteLowering,
    node: TfliteNode,
    kind: str,
    inputs: list[int],
    options: dict[str, Any],
    encoding: Encoding | None,
    spatial: int,
) -> None:
    """Emits the operator and, for a signal, the conversion back from an image with one row."""
    if spatial == 2:
        low.emit(kind, inputs, [low.make(node.output, Variant(encoding, True))], **options)
        return
    signature = low.signature(node.output, last=True)
    shape = low.shape(node.output)
    wide, free = (shape[0], 1, shape[2], shape[1]), (signature[0], 1, *signature[1:])
    held = low.add(f"{node.output}_image", wide, free, encoding=encoding)
    low.emit(kind, inputs, [held], **options)
    made = low.make(node.output, Variant(encoding, True))
    low.emit("RESHAPE", [held, low.integers("shape", signature)], [made], newShape=list(signature))

"""Comparisons, booleans and Where, which ncnn does not have: a boolean is 1 or 0, and sums, products and clips do the
rest."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import onnx

from detent.ir import Op
from detent.targets.ncnn.file.lowering import NcnnLowering, refuse
from detent.targets.ncnn.file.model import Value
from detent.targets.ncnn.file.pointwise import BINARY, LARGEST, TRUNCATE, UNARY, broadcast, scalar

__all__ = ["cast", "combine", "compare", "negate", "where"]

Array = npt.NDArray[Any]

_INTEGERS = (onnx.TensorProto.INT32, onnx.TensorProto.INT64)
_ONE, _HUGE = np.ones(()), np.array(LARGEST)
_FLAG: dict[int, Value] = {0: 0.0, 1: 1.0}
"""The bounds of a Clip that makes a flag of what is 1 or more, or 0 or less."""


def cast(low: NcnnLowering, op: Op) -> None:
    """Integers and booleans are floats already; for a cast to boolean, anything that is not zero becomes 1."""
    source, to = low.data(op), op.attributes["to"]
    if to not in (onnx.TensorProto.FLOAT, onnx.TensorProto.BOOL, *_INTEGERS):
        refuse(op, f"a cast to {onnx.TensorProto.DataType.Name(to)}", "cast to float32, int32, int64 or bool")
    if to == onnx.TensorProto.BOOL and not low.is_flag(source):
        size = _part(low, op, "size", "UnaryOp", [low.blob(source)], {0: UNARY["Abs"]})
        large = _part(low, op, "large", "BinaryOp", [size], scalar(BINARY["Mul"], _HUGE))
        low.layer("Clip", op, [large], _FLAG)
    elif to in _INTEGERS and low.is_float(source):
        low.layer("UnaryOp", op, [low.blob(source)], {0: TRUNCATE})
    else:
        low.reshape(op)


def compare(low: NcnnLowering, op: Op) -> None:
    """`a > b` where `a - b`, times the largest number, is 1 or more; the others are made of that.

    Numbers that differ by less than the smallest normal float32 are equal.
    """
    first, second = (_finite(low, op, index) for index in (0, 1))
    if op.type in ("Less", "GreaterOrEqual"):
        first, second = second, first
    difference = _part(low, op, "difference", "BinaryOp", [first, second], {0: BINARY["Sub"]})
    if op.type == "Equal":
        difference = _part(low, op, "distance", "UnaryOp", [difference], {0: UNARY["Abs"]})
    large = _part(low, op, "large", "BinaryOp", [difference], scalar(BINARY["Mul"], _HUGE))
    if op.type in ("Less", "Greater"):
        low.layer("Clip", op, [large], _FLAG)
        return
    low.layer("BinaryOp", op, [_part(low, op, "other", "Clip", [large], _FLAG)], _not())


def combine(low: NcnnLowering, op: Op) -> None:
    """And, Or and Xor of two booleans: minimum, maximum, absolute difference."""
    blobs = [broadcast(low, op, low.data(op, index)) for index in (0, 1)]
    if op.type == "Xor":
        difference = _part(low, op, "difference", "BinaryOp", blobs, {0: BINARY["Sub"]})
        low.layer("UnaryOp", op, [difference], {0: UNARY["Abs"]})
        return
    low.layer("BinaryOp", op, blobs, {0: BINARY["Min" if op.type == "And" else "Max"]})


def negate(low: NcnnLowering, op: Op) -> None:
    low.layer("BinaryOp", op, [low.blob(low.data(op))], _not())


def where(low: NcnnLowering, op: Op) -> None:
    """What is not chosen is 0, and both are added. A product with a flag would not do: 0 times infinity is no number.

    With a constant flag and one constant, what is not chosen is held between bounds that are the constant.
    """
    condition, held = low.constant(op.inputs[0]), [low.constant(read) for read in op.inputs[1:3]]
    if condition is not None and any(one is not None for one in held):
        index = 1 if held[0] is None else 2
        instead = held[2 - index]
        assert instead is not None
        keep = condition.astype(bool) if index == 1 else ~condition.astype(bool)
        _held_between(low, op, index, keep, instead, op.outputs[0])
        return
    parts = [f"{op.outputs[0]}:part{index}" for index in (1, 2)]
    if condition is not None:
        chosen = condition.astype(bool)
        for index, keep, part in zip((1, 2), (chosen, ~chosen), parts, strict=True):
            _held_between(low, op, index, keep, np.zeros(()), part)
    else:
        flag = broadcast(low, op, low.data(op, 0))
        otherwise = _part(low, op, "otherwise", "BinaryOp", [flag], _not())
        for index, one, part in zip((1, 2), (flag, otherwise), parts, strict=True):
            _times_flag(low, op, index, one, part)
    low.layer("BinaryOp", op, parts, {0: BINARY["Add"]})


def _times_flag(low: NcnnLowering, op: Op, index: int, flag: str, target: str) -> None:
    """A tensor where a flag is 1, and 0 elsewhere: the product if the tensor is one finite number, else the tensor
    between bounds that are infinite or 0."""
    held = low.constant(op.inputs[index])
    if held is not None and held.size == 1 and np.isfinite(held).all():
        low.part(
            "BinaryOp", op, f"choice{index}", [flag], [target], scalar(BINARY["Mul"], np.clip(held, -LARGEST, LARGEST))
        )
        return
    large = _part(low, op, f"large{index}", "BinaryOp", [flag], scalar(BINARY["Mul"], _HUGE))
    above = _part(low, op, f"above{index}", "BinaryOp", [large], scalar(BINARY["Mul"], _HUGE))
    below = _part(low, op, f"below{index}", "UnaryOp", [above], {0: UNARY["Neg"]})
    source = broadcast(low, op, low.data(op, index))
    least = _part(low, op, f"least{index}", "BinaryOp", [source, below], {0: BINARY["Max"]})
    low.part("BinaryOp", op, f"choice{index}", [least, above], [target], {0: BINARY["Min"]})


def _held_between(low: NcnnLowering, op: Op, index: int, keep: Array, other: Array, target: str) -> None:
    """A tensor where `keep` says so, and numbers elsewhere: at least these there, and at most."""
    blob = broadcast(low, op, low.data(op, index))
    for kind, bound in (("Min", np.inf), ("Max", -np.inf)):
        limits = np.broadcast_to(np.where(keep, bound, other), low.shape(op.outputs[0])).astype(np.float32)
        memory = low.memory(op, f"{kind.lower()}{index}", limits.reshape(low.dims(op.outputs[0])))
        given = f"{target}:least" if kind == "Min" else target
        low.part("BinaryOp", op, f"{kind.lower()}_{index}", [blob, memory], [given], {0: BINARY[kind]})
        blob = given


def _finite(low: NcnnLowering, op: Op, index: int) -> str:
    """What a comparison reads, without infinities: the difference of two is no number."""
    tensor = low.data(op, index)
    blob = broadcast(low, op, tensor)
    if not low.is_float(tensor):
        return blob
    return _part(low, op, f"finite{index}", "Clip", [blob], {0: -LARGEST, 1: LARGEST})


def _not() -> dict[int, Value]:
    """1 minus a flag."""
    return scalar(7, _ONE)


def _part(low: NcnnLowering, op: Op, name: str, kind: str, inputs: list[str], params: dict[int, Value]) -> str:
    """One of the layers of an operation; returns its blob."""
    given = f"{op.outputs[0]}:{name}"
    low.part(kind, op, name, inputs, [given], params)
    return given

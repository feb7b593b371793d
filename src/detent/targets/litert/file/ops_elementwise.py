"""Operations that keep the shape: arithmetic, activation functions, softmax."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from detent.ir import Operand, clip_bounds
from detent.targets.litert.file.fusing import TfliteNode
from detent.targets.litert.file.kernels import is_wide
from detent.targets.litert.file.lowering import Lowerer, TfliteLowering, Variant, last_order, refusal
from detent.targets.litert.file.ops_weighted import ACTIVATIONS

__all__ = ["ELEMENTWISE", "unary"]


def _binary(kind: str, *, integer: bool = True, activation: bool = True) -> Lowerer:
    """An operation on two tensors; `integer` if LiteRT has it on int8."""

    def write(low: TfliteLowering, node: TfliteNode) -> None:
        reads = [read for read in node.main.inputs if read is not None]
        if len(reads) != 2:
            raise refusal(node.main, f"it has {len(reads)} operands", "write it as operations on two tensors")
        encoding = low.integer_output(node, *reads) if integer else None
        same_grid = all(read.encoding is not None and low.encoding(read) == encoding for read in reads)
        if kind in ("MAXIMUM", "MINIMUM") and not same_grid:
            encoding = None
        last = _layout(low, node, reads)
        operands = [_operand(low, read, low.rank(node.output), last, encoding is not None) for read in reads]
        options: dict[str, Any] = {"fusedActivationFunction": ACTIVATIONS[node.activation]} if activation else {}
        if kind in ("ADD", "SUB") and encoding is not None and is_wide(encoding):
            options["potScaleInt16"] = False  # else powers of two have another kernel
        low.emit(kind, operands, [low.make(node.output, Variant(encoding, last))], **options)

    return write


def _layout(low: TfliteLowering, node: TfliteNode, reads: Sequence[Operand]) -> bool:
    """Whether to use channels last: if one operand does, unless another has fewer axes, which line up with ONNX's
    order."""
    rank = low.rank(node.output)
    shorter = any(low.rank(read.tensor) != rank and not low.is_constant(read) for read in reads)
    return any(low.made_last(read) for read in reads) and not shorter


def _operand(low: TfliteLowering, read: Operand, rank: int, last: bool, integer: bool) -> int:
    if not low.is_constant(read) or not last:
        return low.take(read, last=last, integer=integer)
    # A constant of fewer axes gets the missing ones before its channels move to the end.
    index = low.take(read, last=False, integer=integer)
    held = low.tensors[index]
    assert held.data is not None
    if held.data.size == 1:
        return index
    data = held.data.reshape((1,) * (rank - held.data.ndim) + held.data.shape)
    return low.constant(f"{read.tensor}_channels_last", data.transpose(last_order(rank)), held.encoding)


def unary(kind: str, *, integer: bool = False, **options: Any) -> Lowerer:
    """An elementwise function; `integer` if LiteRT has an int8 kernel for it."""

    def write(low: TfliteLowering, node: TfliteNode) -> None:
        read = node.main.inputs[0]
        assert read is not None
        encoding = low.integer_output(node, read) if integer else None
        last = low.made_last(read)
        index = low.take(read, last=last, integer=encoding is not None)
        low.emit(kind, [index], [low.make(node.output, Variant(encoding, last))], **options)

    return write


def clip(low: TfliteLowering, node: TfliteNode) -> None:
    """A Relu or Clip that is not fused."""
    op, read = node.main, node.main.inputs[0]
    assert read is not None
    bounds = clip_bounds(low.graph, op)
    if bounds is None:
        raise refusal(op, "its bounds are computed", "clip to constants")
    kinds = {(0.0, np.inf): "RELU", (0.0, 6.0): "RELU6", (-1.0, 1.0): "RELU_N1_TO_1"}
    encoding = low.integer_output(node, read)
    kind = kinds.get(bounds)
    if kind is not None and not (kind == "RELU_N1_TO_1" and encoding is not None and is_wide(encoding)):
        unary(kind, integer=True)(low, node)
        return
    if encoding is not None and low.encoding(read) != encoding:
        encoding = None
    last = low.made_last(read)
    low.alias(node.output, Variant(encoding, last), low.take(read, last=last, integer=encoding is not None))
    low.clip(node.output, bounds)


def leaky_relu(low: TfliteLowering, node: TfliteNode) -> None:
    alpha = float(node.main.attribute("alpha"))
    unary("LEAKY_RELU", integer=True, alpha=alpha)(low, node)


def gelu(low: TfliteLowering, node: TfliteNode) -> None:
    approximate = node.main.attribute("approximate") == "tanh"
    unary("GELU", integer=True, approximate=approximate)(low, node)


def prelu(low: TfliteLowering, node: TfliteNode) -> None:
    read, slope = node.main.inputs
    assert read is not None
    assert slope is not None
    encoding = low.integer_output(node, read, slope)
    last = low.made_last(read)
    rank = low.rank(node.output)
    index = low.take(read, last=last, integer=encoding is not None)
    low.emit(
        "PRELU",
        [index, _operand(low, slope, rank, last, encoding is not None)],
        [low.make(node.output, Variant(encoding, last))],
    )


def _softmax(kind: str, **options: Any) -> Lowerer:
    """Along the last axis, which the channels of an image are in LiteRT's layout."""

    def write(low: TfliteLowering, node: TfliteNode) -> None:
        op, read = node.main, node.main.inputs[0]
        assert read is not None
        rank = low.rank(read.tensor)
        axis = int(op.attribute("axis")) % rank
        if axis not in (1, rank - 1):
            raise refusal(op, f"it runs along axis {axis} of {rank}", "transpose so that it runs along the last axis")
        last = axis == 1 and rank > 2
        encoding = low.integer_output(node, read)
        index = low.take(read, last=last, integer=encoding is not None)
        low.emit(kind, [index], [low.make(node.output, Variant(encoding, last))], **options)

    return write


def _compared(kind: str) -> Lowerer:
    """A comparison of two tensors, or a logical function of two that are true or false."""

    def write(low: TfliteLowering, node: TfliteNode) -> None:
        reads = [read for read in node.main.inputs if read is not None]
        last = _layout(low, node, reads)
        operands = [_operand(low, read, low.rank(node.output), last, False) for read in reads]
        low.emit(kind, operands, [low.make(node.output, Variant(None, last), "bool")])

    return write


def _logical_not(low: TfliteLowering, node: TfliteNode) -> None:
    read = node.main.inputs[0]
    assert read is not None
    last = low.made_last(read)
    index = low.take(read, last=last, integer=False)
    low.emit("LOGICAL_NOT", [index], [low.make(node.output, Variant(None, last), "bool")])


def where(low: TfliteLowering, node: TfliteNode) -> None:
    """Selects from one tensor or the other, in float."""
    reads = [read for read in node.main.inputs if read is not None]
    last = _layout(low, node, reads)
    operands = [_operand(low, read, low.rank(node.output), last, False) for read in reads]
    low.emit("SELECT_V2", operands, [low.make(node.output, Variant(None, last), low.tensors[operands[1]].dtype)])


ELEMENTWISE: dict[str, Lowerer] = {
    "Add": _binary("ADD"),
    "Sub": _binary("SUB"),
    "Mul": _binary("MUL"),
    "Div": _binary("DIV", integer=False),
    "Pow": _binary("POW", integer=False, activation=False),
    "Max": _binary("MAXIMUM", activation=False),
    "Min": _binary("MINIMUM", activation=False),
    "Relu": clip,
    "Clip": clip,
    "HardSwish": unary("HARD_SWISH", integer=True),
    "Sigmoid": unary("LOGISTIC", integer=True),
    "Tanh": unary("TANH", integer=True),
    "Abs": unary("ABS"),
    "Neg": unary("NEG"),
    "Sqrt": unary("SQRT"),
    "Exp": unary("EXP"),
    "Log": unary("LOG"),
    "Sin": unary("SIN"),
    "Cos": unary("COS"),
    "Floor": unary("FLOOR"),
    "Ceil": unary("CEIL"),
    "Not": _logical_not,
    "Equal": _compared("EQUAL"),
    "Greater": _compared("GREATER"),
    "GreaterOrEqual": _compared("GREATER_EQUAL"),
    "Less": _compared("LESS"),
    "LessOrEqual": _compared("LESS_EQUAL"),
    "And": _compared("LOGICAL_AND"),
    "Or": _compared("LOGICAL_OR"),
    "Where": where,
    "LeakyRelu": leaky_relu,
    "Gelu": gelu,
    "PRelu": prelu,
    "Softmax": _softmax("SOFTMAX", beta=1.0),
    "LogSoftmax": _softmax("LOG_SOFTMAX"),
}

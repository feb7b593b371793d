"""Operations without a LiteRT operator, composed of others: normalizations, vector norms, rare activations.

They run in float. Where the result has its own name in the network, only the last operator gives it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from detent.ir import Operand
from detent.targets.litert.file.fusing import TfliteNode
from detent.targets.litert.file.lowering import Lowerer, TfliteLowering, Variant, last_order, refusal
from detent.targets.litert.file.ops_elementwise import unary
from detent.targets.litert.file.ops_pool import axes_of

__all__ = ["COMPOSED"]


class _Steps:
    """Operators one behind the other, of the real numbers that a node reads."""

    def __init__(self, low: TfliteLowering, node: TfliteNode, *, last: bool | None = None):
        read = node.main.inputs[0]
        assert read is not None
        self.low, self.node = low, node
        self.last = low.made_last(read) if last is None else last
        self.x = low.take(read, last=self.last, integer=False)

    def step(self, kind: str, *inputs: int, over: Sequence[int] = (), **options: Any) -> int:
        """An operator of the sizes of `x`, with 1 along the axes `over`."""
        held = self.low.tensors[self.x]
        shape = [1 if axis in over else size for axis, size in enumerate(held.shape)]
        free = [1 if axis in over else size for axis, size in enumerate(held.signature)]
        made = self.low.temporary(f"{self.node.output}_{kind.lower()}", self.x, shape, free)
        self.low.emit(kind, list(inputs), [made], **options)
        return made

    def number(self, value: float) -> int:
        return self.low.constant("number", np.array(value, np.float32))

    def end(self, kind: str, *inputs: int, **options: Any) -> None:
        """The operator that gives the output of the node."""
        made = self.low.make(self.node.output, Variant(None, self.last))
        self.low.emit(kind, list(inputs), [made], **options)

    def normalized(self, axes: Sequence[int], epsilon: float) -> int:
        """(x - mean) / sqrt(variance + epsilon) over these axes."""
        held = self.low.integers("axes", list(axes))
        mean = self.step("MEAN", self.x, held, over=axes, keepDims=True)
        centered = self.step("SUB", self.x, mean)
        squares = self.step("MUL", centered, centered)
        variance = self.step("MEAN", squares, held, over=axes, keepDims=True)
        shifted = self.step("ADD", variance, self.number(epsilon), over=axes)
        return self.step("MUL", centered, self.step("RSQRT", shifted, over=axes))

    def scaled(self, value: int, factors: Sequence[tuple[str, int]]) -> None:
        """The end of a norm: what is left to multiply and add."""
        for position, (kind, factor) in enumerate(factors):
            if position == len(factors) - 1:
                self.end(kind, value, factor)
            else:
                value = self.step(kind, value, factor)
        if not factors:
            self.low.alias(self.node.output, Variant(None, self.last), value)


def layer_norm(low: TfliteLowering, node: TfliteNode) -> None:
    """Over the last axis, or over all from an axis on."""
    op, steps = node.main, _Steps(low, node, last=False)
    rank = len(low.tensors[steps.x].shape)
    first = int(op.attribute("axis")) % rank
    if len(op.outputs) > 1 and any(op.outputs[1:]):
        raise refusal(op, "it also returns the mean or the standard deviation", "use its first output only")
    value = steps.normalized(range(first, rank), float(op.attribute("epsilon")))
    given = zip(("MUL", "ADD"), (*op.inputs[1:], None, None), strict=False)
    steps.scaled(value, [(kind, low.take(read, last=False, integer=False)) for kind, read in given if read is not None])


def rms_norm(low: TfliteLowering, node: TfliteNode) -> None:
    op, steps = node.main, _Steps(low, node, last=False)
    rank = len(low.tensors[steps.x].shape)
    over = range(int(op.attribute("axis")) % rank, rank)
    squares = steps.step("MUL", steps.x, steps.x)
    mean = steps.step("MEAN", squares, low.integers("axes", list(over)), over=over, keepDims=True)
    shifted = steps.step("ADD", mean, steps.number(float(op.attribute("epsilon"))), over=over)
    value = steps.step("MUL", steps.x, steps.step("RSQRT", shifted, over=over))
    weight = op.inputs[1]
    assert weight is not None
    steps.scaled(value, [("MUL", low.take(weight, last=False, integer=False))])


def instance_norm(low: TfliteLowering, node: TfliteNode) -> None:
    """Each channel of each sample by itself."""
    op, steps = node.main, _Steps(low, node)
    rank = len(low.tensors[steps.x].shape)
    over = range(1, rank - 1) if steps.last else range(2, rank)
    value = steps.normalized(list(over), float(op.attribute("epsilon")))
    steps.scaled(value, [(kind, _for_channels(steps, read, rank)) for kind, read in _affine(node)])


def batch_norm(low: TfliteLowering, node: TfliteNode) -> None:
    """Each channel times a number, plus another."""
    op, steps = node.main, _Steps(low, node)
    given = [None if read is None else low.values(read) for read in op.inputs[1:5]]
    weight, bias, mean, variance = (np.asarray([] if array is None else array, np.float64) for array in given)
    if any(array is None for array in given) or op.attribute("training_mode"):
        raise refusal(op, "its parameters are computed, or its statistics are those of the batch", "give constants")
    factor = weight / np.sqrt(variance + float(op.attribute("epsilon")))
    numbers = (("MUL", "factor", factor), ("ADD", "shift", bias - mean * factor))
    rank = len(low.tensors[steps.x].shape)
    steps.scaled(
        steps.x, [(kind, _by_channel(steps, f"{node.output}_{what}", values, rank)) for kind, what, values in numbers]
    )


def _affine(node: TfliteNode) -> list[tuple[str, Operand]]:
    return [(kind, read) for kind, read in zip(("MUL", "ADD"), node.main.inputs[1:], strict=True) if read is not None]


def _for_channels(steps: _Steps, read: Operand, rank: int) -> int:
    """A constant with one number for each channel, lined up with them."""
    values = steps.low.values(read)
    if values is None:
        raise refusal(steps.node.main, f"{read.tensor!r} is computed", "give constants")
    return _by_channel(steps, f"{read.tensor}_by_channel", values, rank)


def _by_channel(steps: _Steps, name: str, values: Any, rank: int) -> int:
    shape = (-1,) if steps.last or rank == 1 else (-1, *(1,) * (rank - 2))
    return steps.low.constant(name, np.asarray(values, np.float32).reshape(shape))


def elu(low: TfliteLowering, node: TfliteNode) -> None:
    """LiteRT's ELU has alpha = 1; another is max(x, 0) + alpha (exp(min(x, 0)) - 1)."""
    alpha = float(node.main.attribute("alpha"))
    if alpha == 1.0:
        unary("ELU", integer=True)(low, node)
        return
    steps = _Steps(low, node)
    steps.end("ADD", steps.step("RELU", steps.x), _below_zero(steps, steps.x, alpha))


def selu(low: TfliteLowering, node: TfliteNode) -> None:
    """gamma times the output of an ELU"""
    steps = _Steps(low, node)
    alpha, gamma = float(node.main.attribute("alpha")), float(node.main.attribute("gamma"))
    total = steps.step("ADD", steps.step("RELU", steps.x), _below_zero(steps, steps.x, alpha))
    steps.end("MUL", total, steps.number(gamma))


def celu(low: TfliteLowering, node: TfliteNode) -> None:
    """max(x, 0) + alpha (exp(min(x, 0) / alpha) - 1)"""
    alpha, steps = float(node.main.attribute("alpha")), _Steps(low, node)
    scaled = steps.step("MUL", steps.x, steps.number(1 / alpha))
    steps.end("ADD", steps.step("RELU", steps.x), _below_zero(steps, scaled, alpha))


def _below_zero(steps: _Steps, x: int, factor: float) -> int:
    """factor (exp(min(x, 0)) - 1)"""
    raised = steps.step("EXP", steps.step("MINIMUM", x, steps.number(0)))
    return steps.step("MUL", steps.step("SUB", raised, steps.number(1)), steps.number(factor))


def hard_sigmoid(low: TfliteLowering, node: TfliteNode) -> None:
    """clip(alpha x + beta, 0, 1)"""
    op, steps = node.main, _Steps(low, node)
    scaled = steps.step("MUL", steps.x, steps.number(float(op.attribute("alpha"))))
    steps.end("RELU_0_TO_1", steps.step("ADD", scaled, steps.number(float(op.attribute("beta")))))


def _softplus(steps: _Steps) -> tuple[int, int]:
    """max(x, 0) and log(1 + exp(-|x|)), of which the sum is log(1 + exp(x)) without overflow."""
    small = steps.step("EXP", steps.step("NEG", steps.step("ABS", steps.x)))
    return steps.step("RELU", steps.x), steps.step("LOG", steps.step("ADD", small, steps.number(1)))


def softplus(low: TfliteLowering, node: TfliteNode) -> None:
    steps = _Steps(low, node)
    steps.end("ADD", *_softplus(steps))


def mish(low: TfliteLowering, node: TfliteNode) -> None:
    """x tanh(softplus(x))"""
    steps = _Steps(low, node)
    steps.end("MUL", steps.x, steps.step("TANH", steps.step("ADD", *_softplus(steps))))


def reciprocal(low: TfliteLowering, node: TfliteNode) -> None:
    steps = _Steps(low, node)
    steps.end("DIV", steps.number(1), steps.x)


def reduce_l2(low: TfliteLowering, node: TfliteNode) -> None:
    """The square root of the sum of squares."""
    read = node.main.inputs[0]
    assert read is not None
    rank = low.rank(read.tensor)
    axes, keep = axes_of(low, node, rank), bool(node.main.attribute("keepdims"))
    steps = _Steps(low, node, last=low.made_last(read) and keep)
    places = sorted(last_order(rank).index(axis) for axis in axes) if steps.last else axes
    held = low.integers("axes", places)
    squares = steps.step("MUL", steps.x, steps.x)
    if keep:
        total = steps.step("SUM", squares, held, over=places, keepDims=True)
    else:
        total = low.add(f"{node.output}_sum", low.shape(node.output), low.signature(node.output))
        low.emit("SUM", [squares, held], [total], keepDims=False)
    steps.end("SQRT", total)


COMPOSED: dict[str, Lowerer] = {
    "LayerNormalization": layer_norm,
    "RMSNormalization": rms_norm,
    "BatchNormalization": batch_norm,
    "InstanceNormalization": instance_norm,
    "Elu": elu,
    "Selu": selu,
    "Celu": celu,
    "HardSigmoid": hard_sigmoid,
    "Softplus": softplus,
    "Mish": mish,
    "Reciprocal": reciprocal,
    "ReduceL2": reduce_l2,
}

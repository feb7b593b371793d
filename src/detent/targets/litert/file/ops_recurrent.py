"""LSTM and GRU step by step, in float: LiteRT's own recurrent operators keep a state from one run to the next."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from detent.ir import default_activations
from detent.targets.litert.file.fusing import TfliteNode
from detent.targets.litert.file.lowering import Lowerer, TfliteLowering, Variant, refusal

__all__ = ["RECURRENT"]

Array = npt.NDArray[Any]

_MOST_STEPS = 256
"""Every step is about ten operators."""


@dataclass(frozen=True)
class _State:
    hidden: int | None = None  # None is zeros
    cell: int | None = None


class _Layer(ABC):
    """One direction of a layer that runs over the steps of a sequence."""

    def __init__(self, low: TfliteLowering, node: TfliteNode, direction: int, gates: int):
        op, reads = node.main, node.main.inputs
        held = [low.values(read) for read in (*reads[1:4], None)[:3]]
        if held[0] is None or held[1] is None:
            raise refusal(op, "its weights are computed", "give constant weights")
        self.low, self.node, self.gates, self.direction = low, node, gates, direction
        self.weight = np.asarray(held[0][direction], np.float32)
        self.recurrence = np.asarray(held[1][direction], np.float32)
        self.size = self.recurrence.shape[1]
        both = np.zeros(2 * gates * self.size) if held[2] is None else held[2][direction]
        self.bias, self.second_bias = np.asarray(both, np.float32).reshape(2, -1)
        self.backward = direction == 1 or op.attribute("direction") == "reverse"

    def run(self, x: int) -> tuple[list[int], _State]:
        """The output of each step, in the order of the sequence, and the state behind the last one."""
        steps = self._products(x)
        state, given = _State(), [0] * len(steps)
        for place in reversed(range(len(steps))) if self.backward else range(len(steps)):
            state = self.step(steps[place], state)
            assert state.hidden is not None
            given[place] = state.hidden
        return given, state

    @abstractmethod
    def step(self, product: int, state: _State) -> _State:
        """The state behind a step, from its product with the weights and the state before."""

    def _products(self, x: int) -> list[int]:
        """The products of all steps with the weights, each by itself."""
        source = self.low.tensors[x]
        wide = self.gates * self.size
        bias = self.bias + (self.second_bias if self.gates == 4 else 0)
        sizes = ((*source.shape[:2], wide), (*source.signature[:2], wide))
        all_steps = self.low.temporary(self.name("products"), x, *sizes)
        inputs = [x, self.constant("weight", self.weight), self.constant("bias", bias)]
        self.low.emit("FULLY_CONNECTED", inputs, [all_steps], fusedActivationFunction=0, keepNumDims=True)
        made = [self.row("product", wide) for _ in range(source.shape[0])]
        self.low.emit("UNPACK", [all_steps], made, num=len(made), axis=0)
        return made

    def recurrent(self, state: _State, bias: Array) -> int | None:
        """The product of the state with the recurrent weights; None where it is zero."""
        if state.hidden is None:
            return None
        inputs = [state.hidden, self.constant("recurrence", self.recurrence), self.constant("recurrent_bias", bias)]
        made = self.row("recurrent", self.gates * self.size)
        self.low.emit("FULLY_CONNECTED", inputs, [made], fusedActivationFunction=0, keepNumDims=False)
        return made

    def split(self, index: int) -> list[int]:
        made = [self.row("gate") for _ in range(self.gates)]
        self.low.emit("SPLIT", [self.low.constant("axis", np.array(1, np.int32)), index], made, numSplits=self.gates)
        return made

    def op(self, kind: str, *inputs: int, width: int | None = None) -> int:
        made = self.row(kind.lower(), width)
        self.low.emit(kind, list(inputs), [made])
        return made

    def constant(self, part: str, values: Array) -> int:
        return self.low.constant(self.name(part), np.asarray(values, np.float32))

    def row(self, part: str, width: int | None = None) -> int:
        """A matrix of one row for each sample."""
        batch, free = self.low.shape(self.node.output)[2], self.low.signature(self.node.output)[2]
        width = self.size if width is None else width
        return self.low.add(self.name(part), (batch, width), (free, width))

    def name(self, part: str) -> str:
        return f"{self.node.output}_{part}_{self.direction}"


class _Lstm(_Layer):
    """ONNX has the gates in the order input, output, forget, cell."""

    def step(self, product: int, state: _State) -> _State:
        recurrent = self.recurrent(state, np.zeros(4 * self.size))
        total = product if recurrent is None else self.op("ADD", product, recurrent, width=4 * self.size)
        enter, leave, forget, cell = self.split(total)
        new = self.op("MUL", self.op("LOGISTIC", enter), self.op("TANH", cell))
        if state.cell is not None:
            new = self.op("ADD", new, self.op("MUL", self.op("LOGISTIC", forget), state.cell))
        return _State(self.op("MUL", self.op("LOGISTIC", leave), self.op("TANH", new)), new)


class _Gru(_Layer):
    """ONNX has the gates in the order update, reset, hidden; the second bias is reset with the state."""

    def step(self, product: int, state: _State) -> _State:
        recurrent = self.recurrent(state, self.second_bias)
        mine = self.split(product)
        if recurrent is None:
            others = [self.constant(f"second_bias{n}", part) for n, part in enumerate(np.split(self.second_bias, 3))]
        else:
            others = self.split(recurrent)
        update = self.op("LOGISTIC", self.op("ADD", mine[0], others[0]))
        reset = self.op("LOGISTIC", self.op("ADD", mine[1], others[1]))
        new = self.op("TANH", self.op("ADD", mine[2], self.op("MUL", reset, others[2])))
        if state.hidden is None:
            return _State(self.op("SUB", new, self.op("MUL", update, new)))
        # (1 - z) n + z h
        return _State(self.op("ADD", new, self.op("MUL", update, self.op("SUB", state.hidden, new))))


def _recurrent(layer: type[_Layer], gates: int) -> Lowerer:
    def write(low: TfliteLowering, node: TfliteNode) -> None:
        _check(low, node)
        read = node.main.inputs[0]
        assert read is not None
        x = low.take(read, last=False, integer=False)
        ways = 2 if node.main.attribute("direction") == "bidirectional" else 1
        runs = [layer(low, node, direction, gates).run(x) for direction in range(ways)]
        outputs = (*node.main.outputs, "", "")
        if outputs[0]:
            _give_steps(low, node, [given for given, _ in runs])
        _give_states(low, outputs[1], [state.hidden for _, state in runs])
        _give_states(low, outputs[2], [state.cell for _, state in runs])

    return write


def _give_steps(low: TfliteLowering, node: TfliteNode, given: list[list[int]]) -> None:
    """(steps, directions, samples, hidden)"""
    steps, ways, samples, width = low.shape(node.output)
    free = low.signature(node.output)[2]
    parts = []
    for row in given:
        parts.append(low.add(f"{node.output}_steps", (steps, samples, width), (steps, free, width)))
        low.emit("PACK", row, [parts[-1]], valuesCount=steps, axis=0)
    low.emit("PACK", parts, [low.make(node.output, Variant(None))], valuesCount=ways, axis=1)


def _give_states(low: TfliteLowering, tensor: str, states: list[int | None]) -> None:
    """(directions, samples, hidden)"""
    held = [state for state in states if state is not None]
    if tensor and held:
        low.emit("PACK", held, [low.make(tensor, Variant(None))], valuesCount=len(held), axis=0)


def _check(low: TfliteLowering, node: TfliteNode) -> None:
    op = node.main
    unusual = list(op.attribute("activations")) != default_activations(op.type, op.attributes)
    before = op.type == "GRU" and not op.attribute("linear_before_reset")
    if unusual or "clip" in op.attributes or op.attribute("layout") or before:
        raise refusal(op, "other functions than the usual, clipping, the batch first, or a reset before the product")
    states = [low.sample(read.tensor) for read in op.inputs[5:7] if read is not None]
    if any(read is not None for read in (*op.inputs[4:5], *op.inputs[7:8])) or any(
        state is None or state.any() for state in states
    ):
        raise refusal(op, "it has lengths or peepholes, or begins with a state that is not zero", "begin with zeros")
    first = op.inputs[0]
    assert first is not None
    if low.shape(first.tensor)[0] > _MOST_STEPS:
        raise refusal(op, f"{low.shape(first.tensor)[0]} steps", f"give sequences of {_MOST_STEPS} steps at most")


RECURRENT: dict[str, Lowerer] = {
    "LSTM": _recurrent(_Lstm, 4),
    "GRU": _recurrent(_Gru, 3),
}

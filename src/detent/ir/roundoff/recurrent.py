"""Bounds on the difference of two float32 computations of a recurrent layer: its steps in float64, each with its own
round-off and the error carried over from the steps before."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from detent.ir.network import Op
from detent.ir.roundoff.error_bound import FUNCTION, UNIT, ErrorBound, Errors, FloatKernel, Inputs, Rule, unknown_error

__all__ = ["RECURRENT"]

_SAYS_LITTLE = 2.0**-6
"""Of numbers between -1 and 1."""

_MOST = 2**20
"""Numbers that the directions of all gates hold together. Older ones become errors."""

_ALL = 2.0
"""From -1 to 1: where two computations may have anything."""


@dataclass(frozen=True, eq=False)
class _Near:
    """What two computations may have: `value + directions @ u + v`, with numbers `u` between -1 and 1 that all
    elements of a sample have in common, and `v` with `|v| <= error`.

    What is in common cancels as it does in the network (affine arithmetic); errors alone would grow from step to step
    with the absolute values of the weights.
    """

    value: Tensor
    directions: Tensor
    error: Tensor

    @classmethod
    def box(cls, value: Tensor, error: Tensor | None = None) -> _Near:
        """A box: the errors of the elements have nothing in common."""
        return cls(value, value.new_zeros((*value.shape, 0)), torch.zeros_like(value) if error is None else error)

    @property
    def reach(self) -> Tensor:
        """How far it may be off, all told."""
        return self.directions.abs().sum(-1) + self.error

    def __add__(self, other: _Near) -> _Near:
        rounding = 2 * UNIT * (self.value.abs() + other.value.abs())
        directions = _sum(self.directions, other.directions)
        return _Near(self.value + other.value, directions, self.error + other.error + rounding)

    def __mul__(self, other: _Near) -> _Near:
        value = self.value * other.value
        directions = _sum(self.directions * other.value.unsqueeze(-1), other.directions * self.value.unsqueeze(-1))
        passed = self.error * other.value.abs() + other.error * self.value.abs() + self.reach * other.reach
        return _Near(value, directions, passed + 2 * UNIT * value.abs())

    def rest(self) -> _Near:
        """1 minus the value."""
        return _Near(1 - self.value, -self.directions, self.error + 2 * UNIT)

    def times(self, weights: Tensor) -> _Near:
        """A sum of products for each row of the weights."""
        terms = weights.shape[1]
        own = 2 * (terms * UNIT / (1 - terms * UNIT)) * (self.value.abs() @ weights.abs().T)
        return _Near(self.value @ weights.T, weights @ self.directions, own + self.error @ weights.abs().T)

    def sigmoid(self) -> _Near:
        value = self.value.sigmoid()
        return self._through(value, value * (1 - value), bend=0.1)

    def tanh(self) -> _Near:
        value = self.value.tanh()
        return self._through(value, 1 - value.square(), bend=0.77)

    def _through(self, value: Tensor, slope: Tensor, *, bend: float) -> _Near:
        """A function that gives numbers between -1 and 1, and whose second derivative is nowhere larger than `bend`."""
        error = self.error * slope + bend / 2 * self.reach.square() + FUNCTION
        found = _Near(value, self.directions * slope.unsqueeze(-1), error)
        lost = ~(found.reach < _ALL)
        return _Near(value, found.directions.masked_fill(lost.unsqueeze(-1), 0.0), error.masked_fill(lost, _ALL))

    def parts(self, count: int) -> list[_Near]:
        """Along the last axis."""
        pieces = (self.value.chunk(count, -1), self.directions.chunk(count, -2), self.error.chunk(count, -1))
        return [_Near(*piece) for piece in zip(*pieces, strict=True)]


def _sum(first: Tensor, second: Tensor) -> Tensor:
    """Of directions, which one side may have none of."""
    if not first.shape[-1] or not second.shape[-1]:
        return second if not first.shape[-1] else first
    return first + second


@dataclass(frozen=True, eq=False)
class _Layer:
    """One way through time: weights and biases of inputs and of what is held, a block of rows for each gate."""

    of_input: Tensor
    of_held: Tensor
    bias_of_input: Tensor
    bias_of_held: Tensor
    reset_is_last: bool

    def gates(self, x: _Near, held: _Near) -> tuple[list[_Near], list[_Near]]:
        """The contributions of the inputs and the state to each gate."""
        count = len(self.of_held) // self.of_held.shape[1]
        from_input = x.times(self.of_input) + _Near.box(self.bias_of_input)
        from_held = held.times(self.of_held) + _Near.box(self.bias_of_held)
        return from_input.parts(count), from_held.parts(count)


_State = tuple[_Near, ...]


def _lstm(layer: _Layer, x: _Near, state: _State) -> _State:
    held, cell = state
    taken, shown, kept, new = (a + b for a, b in zip(*layer.gates(x, held), strict=True))
    cell = kept.sigmoid() * cell + taken.sigmoid() * new.tanh()
    return shown.sigmoid() * cell.tanh(), cell


def _gru(layer: _Layer, x: _Near, state: _State) -> _State:
    (held,) = state
    from_input, from_held = layer.gates(x, held)
    kept, reset = ((a + b).sigmoid() for a, b in zip(from_input[:2], from_held[:2], strict=True))
    if layer.reset_is_last:
        inner = reset * from_held[2]
    else:
        before = 2 * held.value.shape[-1]
        inner = (reset * held).times(layer.of_held[before:]) + _Near.box(layer.bias_of_held[before:])
    return (kept.rest() * (from_input[2] + inner).tanh() + kept * held,)


def _rnn(layer: _Layer, x: _Near, state: _State) -> _State:
    (from_input,), (from_held,) = layer.gates(x, state[0])
    return ((from_input + from_held).tanh(),)


_Step = Callable[[_Layer, _Near, _State], _State]

_STEPS: Mapping[str, _Step] = {"GRU": _gru, "LSTM": _lstm, "RNN": _rnn}

_USUAL = {"direction", "hidden_size", "input_forget", "layout", "linear_before_reset"}


def _proven(op: Op, inputs: Inputs) -> list[Tensor] | None:
    """Of the outputs that are there. None of a form that is not written out here: other functions than sigmoid and
    tanh, sequences of several lengths, peepholes, weights that are computed."""
    given: list[ErrorBound | None] = [*inputs, *[None] * (7 - len(inputs))]
    x, weights, of_held, biases, lengths, *initial = given
    unusual = (
        set(op.attributes) - _USUAL or op.attribute("layout") or (op.type == "LSTM" and op.attribute("input_forget"))
    )
    if unusual or lengths is not None or any(each is not None for each in initial[2:]):
        return None
    assert x is not None
    assert weights is not None
    assert of_held is not None
    if any(each is not None and each.error is not None for each in (weights, of_held, biases)):
        return None
    states, ends = initial[: 2 if op.type == "LSTM" else 1], []
    numbers = _Near.box(x.value.double(), x.spread.double())
    for side in range(len(weights.value)):
        held = of_held.value[side].double()
        bias = torch.zeros(2 * len(held)) if biases is None else biases.value[side]
        first_bias, second_bias = bias.double().chunk(2)
        reset_is_last = op.type == "GRU" and bool(op.attribute("linear_before_reset"))
        layer = _Layer(weights.value[side].double(), held, first_bias, second_bias, reset_is_last)
        first = tuple(_start(each, side, (numbers.value.shape[1], held.shape[1])) for each in states)
        backward = side == 1 or op.attribute("direction") == "reverse"
        ends.append(_through_time(_STEPS[op.type], layer, numbers, first, backward=backward))
    found = [torch.stack(one, 1 if place == 0 else 0) for place, one in enumerate(zip(*ends, strict=True))]
    return [error.nan_to_num(torch.inf) for error, name in zip(found, op.outputs, strict=False) if name]


def _start(given: ErrorBound | None, side: int, shape: tuple[int, int]) -> _Near:
    if given is None:
        return _Near.box(torch.zeros(shape, dtype=torch.float64))
    return _Near.box(given.value[side].double(), given.spread[side].double())


def _through_time(step: _Step, layer: _Layer, x: _Near, state: _State, *, backward: bool) -> tuple[Tensor, ...]:
    """The errors of what is held at every time, and of the state behind the last one."""
    times = range(len(x.value))
    most = _MOST // (len(layer.of_held) * x.value.shape[1])
    shown: dict[int, Tensor] = {}
    for time in reversed(times) if backward else times:
        state = _in_common(step(layer, _Near.box(x.value[time], x.error[time]), state), most)
        shown[time] = state[0].reach
    return torch.stack([shown[time] for time in times]), *(part.reach for part in state)


def _in_common(state: _State, most: int) -> _State:
    """With the errors of a step as directions, so that the next steps treat those of one number alike; of all
    directions the newest, and only whole steps."""
    size = state[0].value.shape[-1]
    new = len(state) * size
    kept = max(most // new - 1, 0) * new
    found = []
    for place, part in enumerate(state):
        if new > most:
            found.append(_Near.box(part.value, part.reach))
            continue
        own = torch.zeros((*part.value.shape, new), dtype=torch.float64)
        own[..., place * size : (place + 1) * size] = torch.diag_embed(part.error)
        old, rest = part.directions[..., :kept], part.directions[..., kept:]
        found.append(_Near(part.value, torch.cat([own, old], -1), rest.abs().sum(-1)))
    return tuple(found)


def _bound(op: Op, kernel: FloatKernel, inputs: Inputs, values: tuple[Tensor, ...]) -> Errors:
    """Of a long sequence, or one with many numbers, what can be proven says little at its end."""
    del kernel
    proven = _proven(op, inputs)
    if proven is None:
        return None
    found = []
    for value, error in zip(values, proven, strict=True):
        guessed = unknown_error(value, inputs)
        found.append(torch.where(error > _SAYS_LITTLE, torch.minimum(error, guessed), error).to(value.dtype))
    return found


RECURRENT: Mapping[str, Rule] = dict.fromkeys(_STEPS, _bound)

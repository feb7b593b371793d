"""LSTM, GRU and RNN: torch modules where weights are constant and torch computes the same, step by step otherwise."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from detent.frontends.onnx.builder import Constant
from detent.frontends.onnx.call import Call, Converter
from detent.frontends.onnx.operators.gathering import reverse_sequence
from detent.frontends.onnx.operators.recurrent_modules import gru_module, lstm_module
from detent.ir import default_activations

__all__ = ["CONVERTERS"]

_DIRECTIONS = ("forward", "reverse", "bidirectional")

Step = Callable[[Tensor, "tuple[Tensor, ...]"], "tuple[Tensor, ...]"]


class SequenceLayout(NamedTuple):
    """The direction of the steps, and whether the batch axis comes first."""

    direction: str
    batch_first: bool


def _layout(call: Call) -> SequenceLayout:
    """From the attributes all three share; what is not computed is refused."""
    kind, direction = call.node.op_type, call.text("direction")
    if direction not in _DIRECTIONS:
        call.refuse(f"the direction {direction!r}", "export the model again")
    default = default_activations(kind, {"direction": direction})
    activations = call.texts("activations") or default
    if [name.lower() for name in activations] != [name.lower() for name in default]:
        call.refuse(f"the activations {activations}", f"only {default} are imported")
    if call.attribute("clip") is not None or call.integer("input_forget"):
        call.refuse("clipped cells or coupled gates", "export the model without them")
    return SequenceLayout(direction, bool(call.integer("layout")))


def _is_plain(call: Call, layout: SequenceLayout) -> bool:
    """Whether torch's module computes it: constant weights, and sequences that are all as long as the tensor."""
    constant = all(isinstance(call.inputs[at], Constant) for at in range(1, 4) if call.has(at))
    return constant and not call.has(4) and not layout.batch_first and not isinstance(call.value(0), Constant)


def _lstm(call: Call) -> Any:
    layout = _layout(call)
    if _is_plain(call, layout) and not call.has(7):
        return lstm_module(call, layout.direction)
    return call.parts(lstm, *map(call.optional, range(8)), kind="lstm", layout=layout)


def lstm(
    x: Tensor,
    w: Tensor,
    r: Tensor,
    b: Tensor | None,
    lengths: Tensor | None,
    h0: Tensor | None,
    c0: Tensor | None,
    peepholes: Tensor | None,
    *,
    layout: SequenceLayout,
) -> tuple[Tensor, ...]:
    def cell(way: int) -> Step:
        bias = 0 if b is None else sum(b[way].chunk(2))
        p_i, p_o, p_f = (0, 0, 0) if peepholes is None else peepholes[way].chunk(3)

        def step(at: Tensor, state: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
            h, c = state
            i, o, f, g = (at @ w[way].t() + h @ r[way].t() + bias).chunk(4, -1)
            i, f = torch.sigmoid(i + p_i * c), torch.sigmoid(f + p_f * c)
            c = f * c + i * torch.tanh(g)
            return torch.sigmoid(o + p_o * c) * torch.tanh(c), c

        return step

    return _run(x, r, cell, (h0, c0), lengths, layout)


def _gru(call: Call) -> Any:
    layout, reset_after = _layout(call), bool(call.integer("linear_before_reset"))
    if _is_plain(call, layout) and reset_after:
        return gru_module(call, layout.direction)
    return call.parts(gru, *map(call.optional, range(6)), kind="gru", layout=layout, reset_after=reset_after)


def gru(
    x: Tensor,
    w: Tensor,
    r: Tensor,
    b: Tensor | None,
    lengths: Tensor | None,
    h0: Tensor | None,
    *,
    layout: SequenceLayout,
    reset_after: bool,
) -> tuple[Tensor, ...]:
    def cell(way: int) -> Step:
        size = r.shape[-1]
        zeros = torch.zeros(6 * size, dtype=x.dtype, device=x.device)
        w_bias, r_bias = (zeros if b is None else b[way]).chunk(2)
        r_gates, r_new = r[way][: 2 * size], r[way][2 * size :]
        gates_bias, new_bias = r_bias[: 2 * size], r_bias[2 * size :]

        def step(at: Tensor, state: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
            (h,) = state
            z_in, r_in, n_in = (at @ w[way].t() + w_bias).chunk(3, -1)
            z_h, r_h = (h @ r_gates.t() + gates_bias).chunk(2, -1)
            z, reset = torch.sigmoid(z_in + z_h), torch.sigmoid(r_in + r_h)
            inner = reset * (h @ r_new.t() + new_bias) if reset_after else (reset * h) @ r_new.t() + new_bias
            return ((1 - z) * torch.tanh(n_in + inner) + z * h,)

        return step

    return _run(x, r, cell, (h0,), lengths, layout)


def _rnn(call: Call) -> Any:
    return call.parts(rnn, *map(call.optional, range(6)), layout=_layout(call))


def rnn(
    x: Tensor,
    w: Tensor,
    r: Tensor,
    b: Tensor | None,
    lengths: Tensor | None,
    h0: Tensor | None,
    *,
    layout: SequenceLayout,
) -> tuple[Tensor, ...]:
    def cell(way: int) -> Step:
        bias = 0 if b is None else sum(b[way].chunk(2))
        return lambda at, state: (torch.tanh(at @ w[way].t() + state[0] @ r[way].t() + bias),)

    return _run(x, r, cell, (h0,), lengths, layout)


def _run(
    x: Tensor,
    r: Tensor,
    cell: Callable[[int], Step],
    initial: tuple[Tensor | None, ...],
    lengths: Tensor | None,
    layout: SequenceLayout,
) -> tuple[Tensor, ...]:
    """All steps in each direction: (Y, the last states), shaped as ONNX has them.

    A sequence that is shorter than the others gives zeros behind its end, and the states it ended with.
    """
    direction, batch_first = layout
    steps = x.transpose(0, 1) if batch_first else x
    ways = ["forward", "reverse"] if direction == "bidirectional" else [direction]
    outputs, finals = [], []
    for index, way in enumerate(ways):
        start = [_initial(state, index, steps, r, batch_first) for state in initial]
        state: tuple[Tensor, ...] = tuple(start)
        step, each = cell(index), []
        for time, at in enumerate(_turned(steps, lengths) if way == "reverse" else steps):
            following = step(at, state)
            if lengths is not None:
                within = (time < lengths).unsqueeze(1)
                following = tuple(torch.where(within, new, old) for new, old in zip(following, state, strict=True))
                each.append(torch.where(within, following[0], torch.zeros_like(following[0])))
            else:
                each.append(following[0])
            state = following
        whole = torch.stack(each)
        outputs.append(_turned(whole, lengths) if way == "reverse" else whole)
        finals.append(state)
    y = torch.stack(outputs, 1)
    last = [torch.stack([state[at] for state in finals]) for at in range(len(initial))]
    if batch_first:
        return y.permute(2, 0, 1, 3), *(state.transpose(0, 1) for state in last)
    return y, *last


def _turned(steps: Tensor, lengths: Tensor | None) -> Tensor:
    return steps.flip(0) if lengths is None else reverse_sequence(steps, lengths, time=0)


def _initial(state: Tensor | None, way: int, steps: Tensor, r: Tensor, batch_first: bool) -> Tensor:
    if state is None:
        return torch.zeros(steps.shape[1], r.shape[-1], dtype=steps.dtype, device=steps.device)
    return state[:, way] if batch_first else state[way]


CONVERTERS: dict[str, Converter] = {"LSTM": _lstm, "GRU": _gru, "RNN": _rnn}

"""ONNX's LSTM, GRU and RNN, unrolled, so that compilers need no kernel for them."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
import torch.nn.functional as F
from torch import Tensor

from detent.ir.attributes import default_activations
from detent.ir.reference.call import Kernel, KernelCall

__all__ = ["RECURRENT"]

State = tuple[Tensor, ...]
Cell = Callable[[Tensor, Tensor, State], State]
"""From what the input adds to the gates, the recurrent bias, and the state, the next state, its output first."""


def _lstm(call: KernelCall, recurrent: Tensor) -> Cell:
    if call.attribute("input_forget"):
        raise call.refusal("its input and forget gates are coupled")

    def cell(given: Tensor, bias: Tensor, state: State) -> State:
        hidden, memory = state
        # ONNX has the gates in the order input, output, forget, cell.
        i, o, f, c = (given + F.linear(hidden, recurrent, bias)).chunk(4, -1)
        memory = torch.sigmoid(f) * memory + torch.sigmoid(i) * torch.tanh(c)
        return torch.sigmoid(o) * torch.tanh(memory), memory

    return cell


def _gru(call: KernelCall, recurrent: Tensor) -> Cell:
    resets_after = bool(call.attribute("linear_before_reset"))
    gates, new = torch.split(recurrent, [2 * recurrent.shape[1], recurrent.shape[1]], 0)

    def cell(given: Tensor, bias: Tensor, state: State) -> State:
        (hidden,) = state
        size = hidden.shape[-1]
        given_gates, given_new = torch.split(given, [2 * size, size], -1)
        bias_gates, bias_new = torch.split(bias, [2 * size, size], -1)
        z, r = torch.sigmoid(given_gates + F.linear(hidden, gates, bias_gates)).chunk(2, -1)
        if resets_after:
            candidate = torch.tanh(given_new + r * F.linear(hidden, new, bias_new))
        else:
            candidate = torch.tanh(given_new + F.linear(r * hidden, new, bias_new))
        return ((1 - z) * candidate + z * hidden,)

    return cell


def _rnn(call: KernelCall, recurrent: Tensor) -> Cell:
    del call
    return lambda given, bias, state: (torch.tanh(given + F.linear(state[0], recurrent, bias)),)


def _recurrent(make: Callable[[KernelCall, Tensor], Cell], states: int) -> Kernel:
    def run(call: KernelCall) -> tuple[Tensor, ...]:
        x, weights, recurrents = call[0], call[1], call[2]
        _check(call)
        rows, size = weights.shape[1], recurrents.shape[2]
        found = []
        for index in range(weights.shape[0]):
            biases = x.new_zeros(2 * rows) if call.optional(3) is None else call[3][index]
            given = F.linear(x, weights[index], biases[:rows])
            state = tuple(_start(call, 5 + part, index, x.shape[1], size) for part in range(states))
            backward = index == 1 or call.attribute("direction") == "reverse"
            found.append(_unrolled(make(call, recurrents[index]), given, biases[rows:], state, backward=backward))
        every = torch.stack([outputs for outputs, _ in found], 1)
        last = [torch.stack([state[part] for _, state in found]) for part in range(states)]
        return (every, *last)[: call.outputs]

    return run


def _check(call: KernelCall) -> None:
    activations, default = call.attribute("activations"), default_activations(call.type, call.attributes)
    refused = {
        f"its activations are {activations}": [name.lower() for name in activations] != [n.lower() for n in default],
        "it clips its gates": "clip" in call.attributes,
        "it has the batch first": call.attribute("layout") != 0,
        "sequences have lengths of their own": call.optional(4) is not None,
        "it has peepholes": call.type == "LSTM" and call.optional(7) is not None,
    }
    for reason, holds in refused.items():
        if holds:
            raise call.refusal(reason)


def _start(call: KernelCall, place: int, index: int, batch: int, size: int) -> Tensor:
    given = call.optional(place)
    return call[0].new_zeros(batch, size) if given is None else given[index]


def _unrolled(cell: Cell, given: Tensor, bias: Tensor, state: State, *, backward: bool) -> tuple[Tensor, State]:
    steps = list(given.unbind(0))
    outputs = []
    for step in reversed(steps) if backward else steps:
        state = cell(step, bias, state)
        outputs.append(state[0])
    return torch.stack(outputs[::-1] if backward else outputs), state


RECURRENT: Mapping[str, Kernel] = {"GRU": _recurrent(_gru, 1), "LSTM": _recurrent(_lstm, 2), "RNN": _recurrent(_rnn, 1)}

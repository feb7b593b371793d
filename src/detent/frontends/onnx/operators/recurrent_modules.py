"""`nn.LSTM` and `nn.GRU` with the weights of an ONNX node, whose gates stand in another order."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from detent.frontends.onnx.builder import Constant, Value
from detent.frontends.onnx.call import Call
from detent.frontends.onnx.source import OnnxParameter

__all__ = ["gru_module", "lstm_module"]

# Position in ONNX of each gate of torch: (i, o, f, c) -> (i, f, c, o); (z, r, n) -> (r, z, n).
_GATES = {"lstm": (0, 2, 3, 1), "gru": (1, 0, 2)}


def lstm_module(call: Call, direction: str) -> Any:
    states = [call.optional(5), call.optional(6)]
    if (states[0] is None) != (states[1] is None):
        call.refuse("one of the two initial states", "give both or none")
    module: Any = nn.LSTM(*_sizes(call), bidirectional=direction == "bidirectional", bias=call.has(3), device="meta")
    return _emit(call, module, "lstm", direction, states)


def gru_module(call: Call, direction: str) -> Any:
    module: Any = nn.GRU(*_sizes(call), bidirectional=direction == "bidirectional", bias=call.has(3), device="meta")
    return _emit(call, module, "gru", direction, [call.optional(5)])


def _emit(call: Call, module: Any, kind: str, direction: str, states: list[Value | None]) -> Any:
    origins = _fill(call, module, _GATES[kind], direction)
    whole = call.module(Rearranged(module, kind, reverse=direction == "reverse"), call.value(0), *states, step="parts")
    call.builder.parameters.update({f"{whole.target}.module.{name}": origin for name, origin in origins.items()})
    return call.members(whole)


def _sizes(call: Call) -> tuple[int, int]:
    return int(call.known(1, "weight").shape[-1]), int(call.known(2, "weight").shape[-1])


def _fill(call: Call, module: Any, gates: tuple[int, ...], direction: str) -> dict[str, OnnxParameter]:
    """Sets the parameters; which part of which initializer each is, where it is one."""
    w, r, b = call.known(1, "weight"), call.known(2, "weight"), call.constant(3)
    ways = ["", "_reverse"] if direction == "bidirectional" else [""]
    if w.shape[0] != len(ways) or r.shape[0] != len(ways):
        call.refuse(f"weights for {w.shape[0]} directions", f"it runs {direction}")
    half = w.shape[1]
    origins: dict[str, OnnxParameter] = {}
    for way, suffix in enumerate(ways):
        parts: list[tuple[str, int, Tensor, tuple[int, int] | None]] = [
            ("weight_ih", 1, w[way], None),
            ("weight_hh", 2, r[way], None),
        ]
        if b is not None:
            parts.append(("bias_ih", 3, b[way][:half], (0, half)))
            parts.append(("bias_hh", 3, b[way][half:], (half, 2 * half)))
        for name, index, values, span in parts:
            setattr(module, f"{name}_l0{suffix}", nn.Parameter(_reordered(values, gates)))
            held = call.inputs[index]
            if isinstance(held, Constant) and held.source is not None:
                origins[f"{name}_l0{suffix}"] = OnnxParameter(held.source, row=way, span=span, gates=gates)
    return origins


def _reordered(values: Tensor, gates: tuple[int, ...]) -> Tensor:
    parts = values.chunk(len(gates))
    return torch.cat([parts[gate] for gate in gates])


class Rearranged(nn.Module):
    """A recurrent module that takes and gives its sequence as ONNX does: (steps, directions, batch, features)."""

    def __init__(self, module: nn.Module, kind: str, *, reverse: bool):
        super().__init__()
        self.module, self.kind, self.reverse = module, kind, reverse

    def forward(self, x: Tensor, *states: Tensor | None) -> tuple[Tensor, ...]:
        given = None if not states or states[0] is None else states if len(states) > 1 else states[0]
        y, last = self.module(x.flip(0) if self.reverse else x, given)
        y = y.reshape(*y.shape[:2], -1, self.module.hidden_size).transpose(1, 2)
        y = y.flip(0) if self.reverse else y
        return y, *(last if isinstance(last, tuple) else (last,))

"""Decomposes recurrent cells, so that their weights are those of linear layers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

__all__ = ["CELLS", "CELL_MODULES"]


def _lstm_cell(x: Any, hx: Any, w_ih: Any, w_hh: Any, b_ih: Any = None, b_hh: Any = None) -> tuple[Any, Any]:
    gates = F.linear(x, w_ih, b_ih) + F.linear(hx[0], w_hh, b_hh)
    parts = torch.chunk(gates, 4, -1)
    kept, new = torch.sigmoid(parts[1]) * hx[1], torch.sigmoid(parts[0]) * torch.tanh(parts[2])
    memory = kept + new
    return torch.sigmoid(parts[3]) * torch.tanh(memory), memory


def _gru_cell(x: Any, hx: Any, w_ih: Any, w_hh: Any, b_ih: Any = None, b_hh: Any = None) -> Any:
    given, held = torch.chunk(F.linear(x, w_ih, b_ih), 3, -1), torch.chunk(F.linear(hx, w_hh, b_hh), 3, -1)
    reset, update = torch.sigmoid(given[0] + held[0]), torch.sigmoid(given[1] + held[1])
    new = torch.tanh(given[2] + reset * held[2])
    return new + update * (hx - new)


def _rnn_cell(function: Callable[[Any], Any]) -> Callable[..., Any]:
    def cell(x: Any, hx: Any, w_ih: Any, w_hh: Any, b_ih: Any = None, b_hh: Any = None) -> Any:
        return function(F.linear(x, w_ih, b_ih) + F.linear(hx, w_hh, b_hh))

    return cell


CELLS: Mapping[Callable[..., Any], Callable[..., Any]] = {
    torch.lstm_cell: _lstm_cell,
    torch.gru_cell: _gru_cell,
    torch.rnn_tanh_cell: _rnn_cell(torch.tanh),
    torch.rnn_relu_cell: _rnn_cell(torch.relu),
}
"""What each function computes, written with proxies."""

CELL_MODULES = (nn.LSTMCell, nn.GRUCell, nn.RNNCell)

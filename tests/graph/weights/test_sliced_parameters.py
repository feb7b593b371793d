"""Parameters of which functions are handed rows: parted where every row has one reader."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import detent


class Rows(nn.Module):
    def __init__(self, forward: Callable[[Rows, Tensor], Tensor]) -> None:
        super().__init__()
        self.w, self.b, self._run = nn.Parameter(torch.randn(6, 4)), nn.Parameter(torch.randn(6)), forward

    def forward(self, x: Tensor) -> Tensor:
        return self._run(self, x)


def weights(forward: Callable[[Rows, Tensor], Tensor]) -> tuple[list[str], dict[str, Tensor], Rows]:
    torch.manual_seed(0)
    net, x = Rows(forward).eval(), torch.randn(3, 4)
    prepared = detent.prepare(net, (x,), backend="onnxruntime")
    detent.calibrate(prepared, [(x,)])
    found = [entry.tensor for entry in prepared.plan.quantized if entry.role == "weight"]
    return found, detent.float_state_dict(prepared), net


def test_each_part_is_a_weight_of_its_own():
    found, state, net = weights(
        lambda n, x: torch.cat([F.linear(x, n.w[0:2], n.b[0:2]), F.linear(x * 2, n.w[2:6], n.b[2:6])], 1)
    )
    assert found == ["w.0.weight", "w.1.weight"]
    assert all(torch.equal(state[name], value) for name, value in net.state_dict().items())


OTHERS = {
    "a row is left out": lambda n, x: F.linear(x, n.w[0:2]) + F.linear(x, n.w[2:4]),
    "a row is read twice": lambda n, x: torch.cat([F.linear(x, n.w[0:4]), F.linear(x, n.w[2:6])], 1),
    "it is read whole too": lambda n, x: torch.cat([F.linear(x, n.w), F.linear(x, n.w[0:2]), F.linear(x, n.w[2:6])], 1),
    "it is not a weight": lambda n, x: F.linear(x, n.w[0:2]) + n.w[2:6].sum(),
}


@pytest.mark.parametrize("name", OTHERS)
def test_it_stays_whole_where(name: str):
    prepared = detent.prepare(
        nn.Sequential(nn.Linear(4, 4), Rows(OTHERS[name])).eval(), (torch.randn(3, 4),), backend="onnxruntime"
    )
    assert [entry.tensor for entry in prepared.plan.quantized if entry.role == "weight"] == ["0.weight"]

"""`sum` of Python and running totals begin with 0, which is no operation."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor, nn

import detent


class Totals(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        total = 0
        total += torch.relu(self.left(x))
        return sum([self.right(x), total]) + 1


class Counts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)

    def forward(self, x: Tensor, counts: Tensor) -> Tensor:
        return self.layer(x) * (counts + 0.0)


def test_there_is_one_addition_and_the_engine_agrees(tmp_path: Path) -> None:
    torch.manual_seed(0)
    net, x = Totals().eval(), torch.randn(4, 8)
    prepared = detent.prepare(net, (x,), backend="onnxruntime")
    (graph,) = prepared.graphs.values()
    assert len([node for node in graph.nodes if node.op == "call_function" and "add" in node.name]) == 2
    detent.calibrate(prepared, [x])
    torch.testing.assert_close(prepared(x), net(x), rtol=0, atol=0.05)
    assert detent.deploy(prepared, tmp_path / "out").verify([x], latency=False).holds


def test_whole_numbers_that_become_real_are_added_to() -> None:
    net, x, counts = Counts().eval(), torch.randn(4, 8), torch.arange(8)
    prepared = detent.prepare(net, (x, counts), backend="onnxruntime")
    (graph,) = prepared.graphs.values()
    assert "add" in {node.name for node in graph.nodes}

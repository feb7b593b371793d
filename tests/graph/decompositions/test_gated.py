"""Gated linear units are captured as the operations they are made of, so that targets quantize these."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import detent
from detent.graph import capture


class Gated(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.unit = nn.Conv1d(4, 8, 3), nn.GLU(1)

    def forward(self, x: Tensor) -> Tensor:
        return F.glu(self.unit(self.conv(x)))


def test_both_ways_of_writing_one_are_taken_apart():
    torch.manual_seed(0)
    net, x = Gated().eval(), torch.randn(2, 4, 10)
    captured = capture(net, (x,))
    (graph,) = captured.regions[""].graphs.values()
    made = [node.target for node in graph.nodes if node.op == "call_function"]
    assert made.count(torch.chunk) == made.count(torch.sigmoid) == 2
    assert F.glu not in made
    assert torch.equal(captured.module(x), net(x))


@pytest.mark.parametrize("leaf", ["unit", nn.GLU], ids=["name", "class"])
def test_a_leaf_stays_one(leaf):
    (graph,) = capture(Gated().eval(), (torch.randn(2, 4, 10),), leaf_modules=[leaf]).regions[""].graphs.values()
    assert "unit" in [node.target for node in graph.nodes]


def test_its_parts_are_on_grids():
    x = torch.randn(2, 4, 10)
    plan = detent.prepare(Gated().eval(), (x,), backend="litert").plan
    assert {entry.kind for entry in plan.quantized} >= {"sigmoid", "mul", "slice"}
    assert not [entry for entry in plan.quantized if entry.kind == "glu"]

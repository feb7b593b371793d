"""Types, sizes and devices of parameters, which models ask for."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import detent
from detent.graph import capture


class Asking(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.linear = nn.Conv2d(3, 8, 3), nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.conv(x.to(self.conv.weight.dtype)).mean((2, 3))
        steps = torch.arange(self.linear.weight.shape[1], dtype=torch.float32, device=self.linear.weight.device)
        return self.linear(x + steps / self.conv.weight.size(0)) * self.linear.weight.ndim


@pytest.mark.parametrize("recipe", ["ptq", "lsq"])
def test_a_quantized_weight_may_be_asked_for_its_type_and_sizes(recipe, tmp_path):
    torch.manual_seed(0)
    model, x = Asking().eval(), torch.randn(2, 3, 8, 8)
    prepared = detent.prepare(model, (x,), backend="onnxruntime", recipe=recipe).eval()
    detent.calibrate(prepared, [x])
    assert {"conv.weight", "linear.weight"} <= {each.tensor for each in prepared.plan.quantized}
    assert detent.deploy(prepared, tmp_path / "out").verify([(x,)]).holds


def test_the_graph_reads_no_parameter():
    model, x = Asking().eval(), torch.randn(2, 3, 8, 8)
    captured = capture(model, (x,))
    (region,) = captured.regions.values()
    assert not any(graph.find_nodes(op="get_attr") for graph in region.graphs.values())
    assert torch.equal(captured.module(x), model(x))

"""Convolutions over more axes than a target has integer kernels for."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

import detent

X = torch.zeros(1, 2, 4, 4, 4)


class Volume(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.fc = nn.Conv3d(2, 3, 3), nn.Linear(3, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc(torch.relu(self.conv(x)).mean((2, 3, 4)))


@pytest.mark.parametrize("backend", ["ncnn", "mnn"])
def test_the_plan_says_why_it_stays_float(backend: str) -> None:
    plan = detent.prepare(Volume().eval(), (X,), backend=backend).plan
    why = f"{backend} has no integer convolution over 3 axes"
    assert plan["conv.weight"].reason == plan["x"].reason == why
    assert "fc.weight" in [entry.tensor for entry in plan.quantized]


def test_others_quantize_it() -> None:
    plan = detent.prepare(Volume().eval(), (X,), backend="onnxruntime").plan
    assert {"x", "conv.weight", "fc.weight"} <= {entry.tensor for entry in plan.quantized}


def test_it_is_deployed_in_float(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model, x = Volume().eval(), torch.randn(2, 2, 4, 4, 4)
    prepared = detent.prepare(model, (x,), backend="ncnn")
    detent.calibrate(prepared, [(x,)])
    graph = detent.deploy(prepared, tmp_path / "out").graph
    (conv,) = [op for op in graph.ops if op.type == "Conv"]
    assert [read.encoding for read in conv.inputs if read is not None] == [None, None, None]

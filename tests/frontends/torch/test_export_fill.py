"""Tensors of one number that forward makes, of sizes that depend on the batch."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import detent
from detent.graph import capture

Made = Callable[[Tensor], Tensor]

MAKERS: dict[str, Made] = {
    "ones": lambda y: y * torch.ones(y.shape[0], y.shape[1], 1, device=y.device, dtype=y.dtype),
    "zeros": lambda y: torch.cat([y, torch.zeros(y.size(0), 1, 16)], 1),
    "zeros-of-a-shape": lambda y: y + torch.zeros(y.shape),
    "zeros-by-name": lambda y: y + torch.zeros(size=(y.shape[0], 6, 16)),
    "zeros-like": lambda y: y + torch.zeros_like(y),
    "full": lambda y: y + torch.full((y.shape[0], 6, 1), 0.5, device=y.device),
    "full-like": lambda y: y + torch.full_like(y, 0.5),
    "new-zeros": lambda y: torch.cat([y, y.new_zeros(y.shape[0], 1, 16)], 1),
    "new-ones": lambda y: y * y.new_ones(y.shape),
    "new-full": lambda y: y * y.new_full((y.shape[0], 1, 1), 0.5),
    "arange": lambda y: y + torch.arange(0, y.shape[1], device=y.device)[None, :, None] * 0.1,
    "of-a-size-that-is-known": lambda y: y + torch.ones(6, 16),
}


class Net(nn.Module):
    def __init__(self, made: Made):
        super().__init__()
        self.first, self.last, self.made = nn.Linear(8, 16), nn.Linear(16, 4), made

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.last(self.made(self.first(x)))
        return out


@pytest.mark.few(5)
@pytest.mark.parametrize("case", MAKERS)
def test_it_is_traced_and_deployed_for_every_batch(case: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model, x = Net(MAKERS[case]).eval(), torch.randn(2, 6, 8)
    captured = capture(model, (x,))
    assert not captured.graph_breaks
    larger = torch.randn(5, 6, 8)
    with torch.no_grad():
        assert torch.equal(captured.module(larger), model(larger))
    prepared = detent.prepare(model, (x,), backend="onnxruntime")
    detent.calibrate(prepared, [x])
    artifact = detent.deploy(prepared, tmp_path / "out")
    assert next(iter(artifact.graph.inputs.values())).shape == ("batch", 6, 8)
    verdict = artifact.verify([x, larger], latency=False)
    assert verdict.holds, str(verdict)

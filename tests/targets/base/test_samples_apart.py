"""Engines that run a batch sample by sample show only tensors that can be put together again."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import detent
from detent.targets.engines import ENGINES


class Attention(nn.Module):
    """Inside, tokens come before samples, and both lie along one axis: sample by sample their order is another."""

    def __init__(self) -> None:
        super().__init__()
        self.attention, self.fc = nn.MultiheadAttention(16, 4, batch_first=True), nn.Linear(16, 16)

    def forward(self, x: Tensor, hidden: Tensor | None = None) -> Tensor:
        return self.fc(self.attention(x, x, x, key_padding_mask=hidden, need_weights=False)[0])


@pytest.mark.parametrize("backend", ["litert", "ncnn"])
def test_tokens_and_samples_along_one_axis_raise_no_alarm(backend: str, tmp_path: Path) -> None:
    if ENGINES[backend].version() is None:
        pytest.skip(f"needs the extra `{ENGINES[backend].extra}`")
    torch.manual_seed(0)
    inputs: tuple[Tensor, ...] = (torch.randn(2, 6, 16),)
    if backend == "litert":  # with a mask its file takes one sample at a time; ncnn always does
        inputs = (*inputs, torch.arange(6) >= torch.tensor([[6], [4]]))
    prepared = detent.prepare(Attention().eval(), inputs, backend=backend)
    detent.calibrate(prepared, [inputs])
    artifact = detent.deploy(prepared, tmp_path / "out")
    assert artifact.verify([inputs], latency=False).holds

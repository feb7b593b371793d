"""What sizes decide is traced; what numbers decide is not."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import detent
from detent.errors import CaptureError
from detent.graph import capture


class ListedParts(nn.Module):
    """As in the C2f block of YOLOv8: the parts of a chunk in a list that grows."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Conv2d(3, 8, 1), nn.Conv2d(16, 4, 1)
        self.inner = nn.ModuleList(nn.Conv2d(4, 4, 3, padding=1) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        parts = list(self.first(x).chunk(2, 1))
        parts.extend(layer(parts[-1]) for layer in self.inner)
        return self.last(torch.cat(parts, 1))


class Asserted(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.fc = nn.Conv2d(3, 8, 3, padding=1), nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        batch, channels, height, _ = x.shape
        assert channels == 3
        if height % 2:
            x = nn.functional.pad(x, (0, 0, 0, 1))
        rows = self.conv(x).reshape(batch, 8, -1).transpose(1, 2)
        return sum(part * 0.5 for part in self.fc(rows).unbind(2))


class ByBatch(Asserted):
    def forward(self, x: Tensor) -> Tensor:
        return self.conv(x) if x.shape[0] == 2 else self.conv(x) * 2


class ByNumbers(Asserted):
    def forward(self, x: Tensor) -> Tensor:
        return self.conv(x) if x.sum() > 0 else self.conv(x) * 2


class OverBatch(Asserted):
    def forward(self, x: Tensor) -> Tensor:
        return torch.stack([self.conv(one) for one in x])


@pytest.mark.parametrize("build", [ListedParts, Asserted])
def test_sizes_decide_and_the_network_is_deployed(build: type[nn.Module], tmp_path: Path) -> None:
    torch.manual_seed(0)
    x = torch.randn(2, 3, 8, 8)
    assert not capture(build().eval(), (x,)).graph_breaks
    prepared = detent.prepare(build().eval(), (x,), backend="onnxruntime")
    detent.calibrate(prepared, [x])
    assert detent.deploy(prepared, tmp_path / "out").verify([torch.randn(3, 3, 8, 8)], latency=False).holds


@pytest.mark.parametrize("build", [ByBatch, ByNumbers, OverBatch])
def test_what_else_decides_stays_python(build: type[nn.Module]) -> None:
    """Sizes of the batch too: another batch would take the other branch."""
    torch.manual_seed(0)
    model = build().eval()
    captured = capture(model, (torch.randn(2, 3, 8, 8),))
    assert "" in captured.graph_breaks
    for x in (torch.ones(1, 3, 8, 8), -torch.ones(2, 3, 8, 8)):
        torch.testing.assert_close(captured.module(x), model(x))


def test_inputs_that_would_take_another_branch_are_refused() -> None:
    captured = capture(Asserted().eval(), (torch.randn(2, 3, 8, 8),))
    assert captured.module(torch.randn(5, 3, 6, 8)).shape == (5, 48)
    with pytest.raises(CaptureError, match="a branch of its Python code that the example inputs did not"):
        captured.module(torch.randn(2, 3, 7, 8))

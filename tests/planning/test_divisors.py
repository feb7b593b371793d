"""What is divided by is on no grid, which would round an epsilon away and make the quotient infinite."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import detent

NORMS: dict[str, Callable[[Tensor], Tensor]] = {
    "quotient": lambda x: x / (x.square().mean(-1, keepdim=True).sqrt() + 1e-5),
    "rsqrt": lambda x: x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-5),
    "reciprocal": lambda x: x * torch.reciprocal(x.abs().mean(-1, keepdim=True) * 2 + 1e-5),
    "power": lambda x: x * (x.abs().mean(-1, keepdim=True) + 1e-5).pow(-1.0),
}


class Normed(nn.Module):
    def __init__(self, norm: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.first, self.second, self._norm = nn.Linear(8, 16, bias=False), nn.Linear(16, 4), norm

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self._norm(self.first(x) + 0.0))


def _rows() -> Tensor:
    """From quiet to loud, and one of silence."""
    return torch.randn(2, 6, 8) * torch.tensor([0.0, 1e-4, 1e-3, 0.1, 1.0, 10.0])[:, None]


@pytest.mark.parametrize("backend", ["onnxruntime", "openvino", "litert", "ncnn", "tensorrt"])
@pytest.mark.parametrize("name", NORMS)
def test_a_quotient_is_finite(name: str, backend: str):
    torch.manual_seed(0)
    prepared = detent.prepare(Normed(NORMS[name]).eval(), (_rows(),), backend=backend)
    detent.calibrate(prepared, [_rows() for _ in range(4)])
    assert [entry for entry in prepared.plan.kept_float if "divides by it" in entry.reason]
    assert {"first.weight", "second.weight"} <= {entry.tensor for entry in prepared.plan.quantized}
    with torch.no_grad():
        assert prepared(_rows()).isfinite().all()


def test_a_residual_stream_that_a_norm_divides_by_keeps_its_grid():
    class Stream(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 8)

        def forward(self, x: Tensor) -> Tensor:
            x = x + self.first(x)
            return x + self.second(x / (x.abs().amax(-1, keepdim=True) + 1e-5))

    prepared = detent.prepare(Stream().eval(), (torch.randn(4, 8),), backend="onnxruntime")
    assert {"add", "add_2"} <= {entry.tensor for entry in prepared.plan.quantized}

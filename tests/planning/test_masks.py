"""Attention masks, however they are made, and the scores they are added to, are on no grid."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import detent

INF = float("-inf")


class Scores(nn.Module):
    def __init__(self, masked: Callable[..., Tensor]) -> None:
        super().__init__()
        self.fc, self._masked = nn.Linear(6, 6), masked
        self.register_buffer("later", torch.full((6, 6), INF).triu(1))

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        scores = self.fc(x)
        return torch.matmul(torch.softmax(self._masked(self, scores, mask), -1), x)


MASKED = {
    "triu": lambda _, s, __: s + torch.triu(torch.full((s.size(1), s.size(1)), INF), 1),
    "subsequent": lambda _, s, __: s + nn.Transformer.generate_square_subsequent_mask(s.size(1)),
    "buffer": lambda n, s, __: s + n.later,
    "in-float": lambda n, s, __: (s.float() + n.later.type_as(s)).float().type_as(s),
    "input": lambda _, s, m: s + m,
    "input-clipped": lambda _, s, m: s + m.clamp(min=-1e30).unsqueeze(0),
    "two": lambda n, s, m: s + m + n.later,
    "where": lambda _, s, m: s + torch.where(m < 0, INF, 0.0),
    "masked_fill": lambda _, s, m: s.masked_fill(m < 0, INF),
}


@pytest.mark.parametrize("backend", ["onnxruntime", "openvino", "litert"])
@pytest.mark.parametrize("name", MASKED)
def test_no_infinity_is_observed(name: str, backend: str):
    torch.manual_seed(0)
    net = Scores(MASKED[name]).eval()
    inputs = torch.randn(2, 6, 6), torch.zeros(6, 6)
    prepared = detent.prepare(net, inputs, backend=backend)
    hidden = inputs[0], torch.full((6, 6), INF).triu(1)
    detent.calibrate(prepared, [inputs, hidden])
    reasons = {entry.tensor: entry.reason for entry in prepared.plan.kept_float}
    assert "a mask leaves no range for the scores" in reasons.values()
    with torch.no_grad():
        assert (prepared(*hidden) - net(*hidden)).abs().max() < 0.1


class Skip(nn.Module):
    def __init__(self, factor: float) -> None:
        super().__init__()
        self.fc, self.factor = nn.Linear(6, 6), factor

    def forward(self, x: Tensor) -> Tensor:
        return torch.softmax(self.fc(x) + self.factor * x, -1)


@pytest.mark.parametrize("factor", [1.0, 2.0])
def test_an_input_that_is_more_than_a_mask_is_none(factor: float):
    plan = detent.prepare(Skip(factor).eval(), (torch.randn(2, 6),), backend="onnxruntime").plan
    assert {entry.tensor for entry in plan.quantized} >= {"x", "fc", "mul", "add", "softmax"}

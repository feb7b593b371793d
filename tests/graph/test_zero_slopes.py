"""Gradients are finite where a grid rounds to 0 what a root or a quotient is taken of."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import detent
from detent.graph import quantizers_of


class Net(nn.Module):
    def __init__(self, function) -> None:
        super().__init__()
        self.first, self.second, self.function = nn.Linear(4, 4), nn.Linear(4, 4), function

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.function(self.first(x)))


def _root(x: Tensor) -> Tensor:
    return torch.sqrt(x * x + 0)


def _quotient(x: Tensor) -> Tensor:
    return torch.tanh(1 / (x * x + 1e-6))


def _prepared(function, example: Tensor):
    torch.manual_seed(0)
    prepared = detent.prepare(Net(function), (example,), backend="onnxruntime", recipe="lsq")
    detent.calibrate(prepared, [example])
    return prepared.train()


@pytest.mark.parametrize("function", [_root, _quotient], ids=["root", "quotient"])
def test_gradients_are_finite(function) -> None:
    x = torch.randn(64, 4, generator=torch.Generator().manual_seed(1))
    prepared = _prepared(function, x)
    assert any(quantizer.guards_zero for quantizer in quantizers_of(prepared))
    prepared(x).square().sum().backward()
    found = [parameter.grad for parameter in prepared.parameters() if parameter.grad is not None]
    assert found
    assert all(bool(gradient.isfinite().all()) for gradient in found)


def test_other_functions_are_not_guarded() -> None:
    prepared = _prepared(torch.relu, torch.randn(8, 4))
    assert not any(quantizer.guards_zero for quantizer in quantizers_of(prepared))


def test_only_zeros_lose_what_is_not_finite() -> None:
    prepared = _prepared(_root, torch.randn(8, 4))
    quantizer = next(one for one in quantizers_of(prepared) if one.guards_zero)
    x = torch.tensor([0.0, 1.0], requires_grad=True)
    values = quantizer(x)
    values.backward(torch.tensor([torch.inf, 1.0]))
    assert x.grad is not None
    assert x.grad.tolist() == [0.0, 1.0]

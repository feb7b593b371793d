"""A bias on the scale of its accumulator is simulated as the number that its code stands for."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import detent
from detent.errors import NotCalibratedError
from detent.graph import DerivedBias


def test_codes_beyond_the_digits_of_a_float32() -> None:
    torch.manual_seed(0)
    net = nn.Linear(64, 64)
    with torch.no_grad():
        net.weight.mul_(1e-4)
        net.bias.copy_(torch.linspace(-3, 3, 64))  # within 31 bits
    prepared = detent.prepare(net, (torch.randn(4, 64),), backend="onnxruntime")
    detent.calibrate(prepared, [torch.randn(4, 64)])
    (derived,) = (module for module in prepared.modules() if isinstance(module, DerivedBias))
    bias = net.bias.detach().requires_grad_()
    codes, simulated = derived.codes(bias), derived(bias)
    assert codes.abs().max() > 2**24
    assert torch.equal(simulated, codes.float() * derived.qparams_for(bias).scale)
    simulated.sum().backward()
    assert torch.equal(bias.grad, torch.ones(64))


def test_the_kernel_computes_what_plain_operations_compute(monkeypatch) -> None:
    torch.manual_seed(0)
    net = nn.Linear(8, 64)
    prepared = detent.prepare(net, (torch.randn(4, 8),), backend="onnxruntime")
    detent.calibrate(prepared, [torch.randn(4, 8)])
    (derived,) = (module for module in prepared.modules() if isinstance(module, DerivedBias))
    values = net.bias.detach().clone()
    values[:6] = torch.tensor([1e9, -1e9, torch.inf, -torch.inf, torch.nan, 0.0])  # past 32 bits, on both sides
    weights = torch.randn(64)

    def run() -> tuple[torch.Tensor, torch.Tensor | None]:
        bias = values.clone().requires_grad_()
        simulated = derived(bias)
        simulated.backward(weights)
        return simulated.detach(), bias.grad

    by_kernel = run()
    monkeypatch.setattr("detent.graph.derived_bias.fused_accumulator_quantize", lambda *_: None)
    for kernel, plain in zip(by_kernel, run(), strict=True):
        torch.testing.assert_close(kernel, plain, rtol=0, atol=0, equal_nan=True)
    assert by_kernel[1].ne(0).sum() == 59  # all but those past the ends, and NaN


def test_a_prepared_model_is_printed_before_it_is_calibrated() -> None:
    """torch prints a layer by whether it has a bias, which asks for it."""
    prepared = detent.prepare(nn.Sequential(nn.Conv2d(3, 4, 1)), (torch.randn(1, 3, 4, 4),), backend="onnxruntime")
    assert "3, 4, kernel_size=(1, 1)" in repr(prepared)
    with pytest.raises(NotCalibratedError, match="never measured"):
        prepared(torch.randn(1, 3, 4, 4))

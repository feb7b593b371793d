"""A bias on the scale of its accumulator is simulated as the number that its code stands for."""

from __future__ import annotations

import torch
from torch import nn

import detent
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

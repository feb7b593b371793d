"""A bias in front of a batch norm that uses batch statistics cancels; its gradient is zero and not missing."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import detent
from detent.graph import FoldedBatchNorm, observing, quantizers_of
from detent.recipes import Recipe


@pytest.mark.parametrize("strategy", [1, 2, 3, 4])
def test_every_parameter_has_a_gradient(strategy: int) -> None:
    torch.manual_seed(0)
    folded = FoldedBatchNorm(nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3), strategy, "conv").train()
    folded(torch.randn(4, 2, 6, 6)).square().sum().backward()
    gradients = {name: parameter.grad for name, parameter in folded.named_parameters()}
    assert all(gradient is not None for gradient in gradients.values())
    if strategy in (2, 3):
        assert torch.equal(gradients["op.bias"], torch.zeros(3))


@pytest.mark.parametrize("strategy", [1, 2, 3, 4])
def test_a_model_that_is_observed_in_training_mode_knows_the_range_of_its_bias(strategy: int) -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3))
    with torch.no_grad():
        net[1].bias.copy_(torch.tensor([3.0, -12.7, 1.0]))
    recipe = Recipe.from_dict({"name": "x", "batch_norm": {"strategy": strategy}, "bias": {"observer": "minmax"}})
    x = torch.randn(4, 2, 6, 6)
    prepared = detent.prepare(net, (x,), backend="vitis", recipe=recipe).train()
    with observing(prepared), torch.no_grad():
        prepared(x)
    (bias,) = (one for one in quantizers_of(prepared) if one.role == "bias")
    assert bias.qparams().scale.item() == 0.125  # of 8 bits, for 12.7 and a little

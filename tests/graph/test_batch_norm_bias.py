"""A bias in front of a batch norm that uses batch statistics cancels; its gradient is zero and not missing."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from detent.graph import FoldedBatchNorm


@pytest.mark.parametrize("strategy", [1, 2, 3, 4])
def test_every_parameter_has_a_gradient(strategy: int) -> None:
    torch.manual_seed(0)
    folded = FoldedBatchNorm(nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3), strategy, "conv").train()
    folded(torch.randn(4, 2, 6, 6)).square().sum().backward()
    gradients = {name: parameter.grad for name, parameter in folded.named_parameters()}
    assert all(gradient is not None for gradient in gradients.values())
    if strategy in (2, 3):
        assert torch.equal(gradients["op.bias"], torch.zeros(3))

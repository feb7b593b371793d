"""Parts of a model may have names that a ModuleDict has too; those that prepared models use themselves are refused."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from detent.calibrating import calibrate
from detent.errors import CaptureError
from detent.graph import capture, quantizer_path
from detent.preparing import prepare


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.keys, self.values, self.pop = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x):
        return self.pop(self.keys(x) * self.values(x))


def test_layers_named_as_the_methods_of_a_dict_are_quantized():
    x = torch.randn(3, 4)
    prepared = prepare(Attention().eval(), (x,), backend="onnxruntime")
    calibrate(prepared, [x])
    assert {"keys", "values"} <= {entry.tensor for entry in prepared.plan.quantized}
    assert prepared.get_submodule(quantizer_path("values")).calibrated
    assert quantizer_path("values") == "activation_quantizers.values__tensor"


def test_a_part_that_would_hide_the_plan_is_refused():
    net = nn.Sequential()
    net.add_module("plan", nn.Linear(2, 2))
    with pytest.raises(CaptureError, match="a part named 'plan'"):
        capture(net, (torch.randn(1, 2),))

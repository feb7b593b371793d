"""What cannot be deployed is refused with the line of the model's own code."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import detent
from detent.errors import DeployError


class Sorts(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x):
        return torch.erfinv(self.linear(x).clamp(-0.5, 0.5))


class Decides(Sorts):
    def forward(self, x):
        y = self.linear(x)
        return y if y.sum() > 0 else -y


def refused(model, folder, backend="onnxruntime"):
    x = torch.randn(2, 4)
    prepared = detent.prepare(model.eval(), (x,), backend=backend)
    detent.calibrate(prepared, [x])
    with pytest.raises(DeployError) as error:
        detent.deploy(prepared, folder / "net")
    return error.value


def test_an_operation_that_the_format_does_not_have(tmp_path):
    assert "test_naming_lines.py: return torch.erfinv(" in refused(Sorts(), tmp_path).found


@pytest.mark.parametrize("model", [Decides(), nn.Sequential(nn.Linear(4, 4), Decides())], ids=["whole", "inside"])
def test_python_that_depends_on_numbers(model, tmp_path):
    error = refused(model, tmp_path)
    assert "test_naming_lines.py: return y if y.sum() > 0 else -y" in error.found
    assert "torch.where" in error.to_do

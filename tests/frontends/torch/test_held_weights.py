"""Weights that forward hands to functions, deployed: in the file as integers, and run by the engine as simulated."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import detent


class Functional(nn.Module):
    """A network without a single module that has weights."""

    def __init__(self):
        super().__init__()
        self.w, self.b = nn.Parameter(0.3 * torch.randn(8, 3, 3, 3)), nn.Parameter(torch.randn(8))
        self.narrow = nn.Parameter(0.3 * torch.randn(8, 1, 3, 3))
        self.register_buffer("blur", torch.ones(8, 1, 2, 2) / 4)
        self.out = nn.Parameter(0.3 * torch.randn(8, 5))

    def forward(self, x):
        y = F.relu(F.conv2d(x, self.w, self.b, padding=1))
        y = F.relu(F.conv2d(y, self.narrow, groups=8))
        y = F.conv2d(y, self.blur, stride=2, groups=8)
        return F.adaptive_avg_pool2d(y, 1).flatten(1) @ self.out


@pytest.mark.few(1)
@pytest.mark.parametrize("backend", ["onnxruntime", "openvino", "litert"])
def test_the_engine_computes_what_was_simulated(backend, tmp_path):
    torch.manual_seed(0)
    model, batches = Functional().eval(), [torch.randn(4, 3, 12, 12) for _ in range(3)]
    prepared = detent.prepare(model, (batches[0],), backend=backend)
    detent.calibrate(prepared, batches)
    artifact = detent.deploy(prepared, tmp_path / "out")
    weights = {tensor["tensor"] for tensor in artifact.manifest["tensors"] if tensor["role"] == "weight"}
    assert weights == {"w.weight", "narrow.weight", "blur.weight", "out.weight"}
    verdict = artifact.verify(batches, latency=False)
    assert verdict.holds, str(verdict)
    assert "no engine ran" not in str(verdict)


def test_the_file_has_no_float_weights(tmp_path):
    torch.manual_seed(0)
    model, x = Functional().eval(), torch.randn(4, 3, 12, 12)
    prepared = detent.prepare(model, (x,), backend="onnxruntime")
    detent.calibrate(prepared, [x])
    initializers = detent.deploy(prepared, tmp_path / "out").model.graph.initializer
    matrices = {tensor.name: tensor.data_type for tensor in initializers if len(tensor.dims) > 1}
    assert len(matrices) == 4
    assert set(matrices.values()) == {3}  # TensorProto.INT8

"""Code that makes plain numbers of sizes is recorded while it runs on two batches."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import detent
from detent.errors import CaptureError
from detent.graph import capture
from tests.graph.nets import Net, run

pytestmark = pytest.mark.slow


def net(function):
    torch.manual_seed(0)
    parts = {"a": nn.Conv2d(3, 8, 3, padding=1), "b": nn.Conv2d(8, 4, 1), "norm": nn.BatchNorm2d(4)}
    made = Net(lambda n, x: n.norm(n.b(function(n.a(x), n))), **parts)
    made.register_buffer("strides", torch.tensor([2.0, 4.0]))
    return made.eval()


def image(batch=2, size=8):
    torch.manual_seed(1)
    return torch.randn(batch, 3, size, size)


def windows(y, _):
    """Of Swin."""
    count, size, h, w = y.shape[1], 4, y.shape[2], y.shape[3]
    parts = y.view(-1, count, h // size, size, w // size, size).permute(0, 2, 4, 1, 3, 5).reshape(-1, count, size, size)
    batch = int(parts.shape[0] / (h * w / size / size))
    whole = torch.softmax(parts, 1).view(batch, h // size, w // size, count, size, size)
    return whole.permute(0, 3, 1, 4, 2, 5).reshape(batch, -1, h, w)


def numbers_of_a_buffer(y, n):
    return y * float(n.strides[0]) + torch.full((y.shape[0], 1, 1, 1), n.strides[1].item())


def by_numpy(y, _):
    steps = int(np.ceil(y.shape[0] * y.shape[3] / y.shape[2]))
    return y.reshape(steps, -1, *y.shape[2:])


def by_a_name(y, _):
    return {"8": y, "16": y * 2}[str(int(math.sqrt(y.shape[2] * y.shape[3])))]


TAKEN = [windows, numbers_of_a_buffer, by_numpy, by_a_name]


@pytest.mark.parametrize("function", TAKEN, ids=lambda function: function.__name__)
def test_it_computes_the_same_for_other_batches(function):
    model = net(function)
    captured = capture(model, (image(),))
    assert not captured.graph_breaks
    for x in (image(), image(5), image(1)):
        assert torch.allclose(run(captured.module, (x,)), run(model, (x,)), atol=1e-6)


def test_other_sizes_are_checked():
    prepared = detent.prepare(net(windows), (image(),), backend="onnxruntime")
    assert "was recorded while it ran: int() argument" in " ".join(prepared.plan.notes)
    detent.calibrate(prepared, [image()])
    with pytest.raises(CaptureError, match="their sizes take a branch"):
        prepared(image(2, 16))


def test_it_is_deployed_for_any_batch(tmp_path):
    prepared = detent.prepare(net(windows), (image(),), backend="onnxruntime")
    detent.calibrate(prepared, [image()])
    artifact = detent.deploy(prepared, tmp_path)
    assert artifact.verify([image(), image(3)], latency=False).holds


def test_dropout_and_batch_norm_work_in_training():
    def dropping(y, n):
        return F.dropout(windows(y, n), 0.5, n.training)

    model = net(dropping)
    before = model.norm.running_mean.clone()
    captured = capture(model, (image(),))
    assert torch.equal(captured.module.norm.running_mean, before)
    assert any(isinstance(part, nn.Dropout) for part in captured.module.modules())
    captured.module.train()
    x = image()
    assert not torch.equal(captured.module(x), captured.module(x))
    assert not torch.equal(captured.module.norm.running_mean, before)


def test_a_batch_size_that_is_built_in():
    model = net(lambda y, _: y.view(int(float(2)), 8, *(int(size / 1) for size in y.shape[2:])))
    captured = capture(model, (image(),))
    assert not captured.graph_breaks
    with pytest.raises(CaptureError, match="their sizes take a branch"):
        captured.module(image(4))


def an_index(y, _):
    return y * range(10)[int(y.mean() > 0)]


def a_branch(y, _):
    return y if y.sum() > 0 else -y


def a_mask(y, _):
    return y / len(y[y > 0])


@pytest.mark.parametrize("function", [an_index, a_branch, a_mask], ids=lambda function: function.__name__)
def test_numbers_of_what_depends_on_the_inputs_are_refused(function):
    captured = capture(net(function), (image(),))
    assert "depends on the numbers in a tensor, not on sizes alone (line" in captured.graph_breaks[""]

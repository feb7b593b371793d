"""Functions that their authors hide from tracing, and modules that act in training alone."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import detent
from detent.graph import capture


@torch.fx.wrap
def windowed(x: Tensor, weight: Tensor, bias: Tensor, size: int) -> Tensor:
    """Attention in windows of tokens, shifted where there are several; hidden as torchvision hides that of Swin."""
    batch, tokens, features = x.shape
    if tokens > size:
        x = torch.roll(x, -1, 1)
    windows = x.view(batch * (tokens // size), size, features)
    q, k, v = F.linear(windows, weight, bias).chunk(3, -1)
    mask = x.new_zeros((size, size))
    mask[: size // 2, size // 2 :] = -100
    weights = torch.softmax(q @ k.transpose(-2, -1) / 2 + mask, -1)
    return (weights @ v).reshape(batch, tokens, features)


@torch.fx.wrap
def by_numbers(x: Tensor) -> Tensor:
    return x * 2 if x.sum() > 0 else x


class Windows(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(8, 24)

    def forward(self, x: Tensor) -> Tensor:
        return windowed(x, self.qkv.weight, self.qkv.bias, 4)


def test_a_hidden_function_is_traced_and_quantized():
    torch.manual_seed(0)
    net, x = Windows().eval(), torch.randn(2, 8, 8)
    prepared = detent.prepare(net, (x,), backend="onnxruntime")
    detent.calibrate(prepared, [x])
    assert prepared.plan.notes[:-1] == ()
    assert [entry.kind for entry in prepared.plan.quantized if entry.role == "weight"] == ["linear"]
    assert [op.runs for op in prepared.plan.ops if op.kind == "matmul"] == ["quantized", "quantized"]
    state = detent.float_state_dict(prepared)
    assert all(torch.equal(state[name], value) for name, value in net.state_dict().items())


def test_one_that_cannot_be_traced_stays_a_call():
    class Net(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return by_numbers(x) + 1

    x = torch.ones(2, 3)
    captured = capture(Net(), (x,))
    (graph,) = captured.regions[""].graphs.values()
    assert by_numbers in [node.target for node in graph.nodes]
    assert torch.equal(captured.module(-x), torch.zeros(2, 3))


def test_one_that_is_an_operation_of_the_users_own_stays_a_call():
    (graph,) = capture(Windows().eval(), (torch.randn(2, 8, 8),), own_operations=[windowed]).regions[""].graphs.values()
    assert windowed in [node.target for node in graph.nodes]


class Depth(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        if not self.training:
            return x
        return x * torch.empty(x.shape[0], 1).bernoulli_(0.5)


def test_stochastic_depth_is_for_training_alone(tmp_path):
    torch.manual_seed(0)
    net, x = nn.Sequential(nn.Linear(4, 4), Depth(), nn.Linear(4, 2)), torch.randn(16, 4)
    prepared = detent.prepare(net, (x,), backend="onnxruntime")
    detent.calibrate(prepared, [x])
    assert prepared.plan["_1"].kind == "dropout"
    assert torch.equal(prepared.eval()(x), prepared(x))
    assert not torch.equal(prepared.train()(x), prepared(x))
    artifact = detent.deploy(prepared.eval(), tmp_path / "out")
    assert artifact.verify([x], latency=False).holds


class Fields(nn.Module):
    """The largest of the points, by the name of the field, as PointNet reads it."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.conv, self.linear, self.name = nn.Conv1d(3, 8, 1), nn.Linear(8, 4), name

    def forward(self, x: Tensor) -> Tensor:
        x = self.conv(x).relu()
        found = {"max": x.max(dim=2), "sort": x.sort(dim=2, descending=True), "topk": x.topk(3, dim=2)}[self.name]
        return self.linear(found.values if self.name == "max" else found.values[..., 0])


@pytest.mark.parametrize("name", ["max", "sort", "topk"])
def test_named_fields_of_what_a_function_gives_are_items(name, tmp_path):
    torch.manual_seed(0)
    model, x = Fields(name).eval(), torch.randn(2, 3, 10)
    prepared = detent.prepare(model, (x,), backend="onnxruntime", recipe="ptq").eval()
    detent.calibrate(prepared, [x])
    assert detent.deploy(prepared, tmp_path / "out").verify([(x,)]).holds

"""A subclass of a torch layer is that layer if it computes the same, perhaps with a weight of its own making, and is
traced into if it does not."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import detent
from detent.graph import capture


class Standardized(nn.Conv2d):
    def forward(self, x):
        mean, deviation = self.weight.mean((1, 2, 3), keepdim=True), self.weight.std((1, 2, 3), keepdim=True)
        return F.conv2d(x, (self.weight - mean) / (deviation + 1e-5), self.bias, self.stride, self.padding)


class PaddedBehind(nn.Conv2d):
    def forward(self, x):
        return F.conv2d(F.pad(x, (0, 1, 0, 1)), self.weight, self.bias, self.stride)


class Counted(nn.Conv2d):
    calls = 0

    def forward(self, x):
        type(self).calls += 1
        return super().forward(x)


def net(layer: type[nn.Conv2d]) -> nn.Module:
    torch.manual_seed(0)
    norm = nn.BatchNorm2d(4)
    norm.running_mean.uniform_(-1, 1)
    norm.running_var.uniform_(0.5, 2)
    return nn.Sequential(layer(3, 4, 3), norm, nn.ReLU(), nn.Conv2d(4, 2, 1)).eval()


X = torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(0))


@pytest.mark.pairwise(strength=1)
@pytest.mark.parametrize("backend", ["onnxruntime", "openvino"])
@pytest.mark.parametrize("layer", [Standardized, PaddedBehind, Counted])
def test_it_computes_what_the_float_model_does_and_is_deployed(layer, backend, tmp_path):
    model = net(layer)
    prepared = detent.prepare(model, (X,), backend=backend)
    detent.calibrate(prepared, [(X,)])
    wanted = model(X)
    # 8 bits of two layers; a batch norm folded into the weight before it is standardized would be 20 % off.
    assert (prepared.eval()(X) - wanted).abs().max() < 0.03 * wanted.abs().max()
    assert detent.deploy(prepared, tmp_path / "out").verify([(X,)], latency=False).holds


def test_one_that_computes_the_same_or_only_its_weight_stays_one_node():
    for layer, stays in ((Counted, True), (Standardized, True), (PaddedBehind, False)):
        (graph,) = capture(net(layer), (X,)).regions[""].graphs.values()
        assert any(node.op == "call_module" and node.target == "0" for node in graph.nodes) is stays


def test_one_that_is_named_as_a_leaf_stays_one_node():
    (graph,) = capture(net(Standardized), (X,), leaf_modules=[Standardized]).regions[""].graphs.values()
    assert any(node.op == "call_module" and node.target == "0" for node in graph.nodes)


class Scaled(nn.Conv2d):
    """As NFNets have it: the parameters of the weight are its own and a gain."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.gain = nn.Parameter(torch.full((self.out_channels,), 1.5))

    def forward(self, x):
        rows = self.weight.reshape(1, self.out_channels, -1)
        weight = F.batch_norm(rows, None, None, weight=self.gain, training=True, momentum=0.0, eps=1e-6)
        return F.conv2d(x, weight.reshape_as(self.weight), self.bias, self.stride, self.padding)


class ScaledBehindPadding(Scaled):
    """As NFNets have it that were trained with TensorFlow's padding: it is the layer that pads."""

    def forward(self, x):
        return super().forward(F.pad(x, (0, x.shape[-1] % 2, 0, 1)))


class Equalized(nn.Module):
    """A learning rate that is the same for all layers (StyleGAN), and a weight that is a view."""

    def __init__(self):
        super().__init__()
        self.flat, self.scale = nn.Parameter(torch.randn(48)), nn.Parameter(torch.tensor(0.2))
        self.rows, self.head = nn.Parameter(torch.randn(6, 8)), nn.Linear(6, 4)

    def forward(self, x):
        x = F.linear(x, (self.flat * self.scale).view(6, 8)) + F.linear(x, self.rows * x.mean())
        return self.head(x)


@pytest.mark.parametrize("backend", ["onnxruntime", "openvino"])
def test_what_is_computed_beside_the_weight_stays(backend, tmp_path):
    model = net(ScaledBehindPadding)
    prepared = detent.prepare(model, (X,), backend=backend)
    assert "0.weight.weight" in {entry.tensor for entry in prepared.plan.quantized}
    detent.calibrate(prepared, [(X,)])
    wanted = model(X)
    assert (prepared.eval()(X) - wanted).abs().max() < 0.03 * wanted.abs().max()
    assert detent.deploy(prepared, tmp_path / "out").verify([(X,)], latency=False).holds
    with pytest.raises(RuntimeError, match=r"0\.(gain|weight_is_computed)"):
        prepared.load_state_dict(net(ScaledBehindPadding).state_dict())


def test_a_function_of_parameters_is_a_weight_and_one_of_the_input_is_not():
    model = Equalized().eval()
    prepared = detent.prepare(model, (X,), backend="onnxruntime")
    weights = {entry.tensor for entry in prepared.plan.quantized if entry.role == "weight"}
    assert weights == {"flat.weight", "head.weight"}
    detent.calibrate(prepared, [(X,)])
    wanted = model(X)
    assert (prepared(X) - wanted).abs().max() < 0.03 * wanted.abs().max()


class Gated(nn.Conv2d):
    def forward(self, x):
        return F.conv2d(x, self.weight * x.mean(), self.bias)


def test_a_weight_that_is_computed_from_parameters_is_quantized_as_it_is():
    model = net(Scaled)
    prepared = detent.prepare(model, (X,), backend="onnxruntime")
    assert "0.weight" in {entry.tensor for entry in prepared.plan.quantized if entry.role == "weight"}
    (rows,) = (model[0].weight.detach().flatten(1),)
    centered = rows - rows.mean(1, keepdim=True)
    expected = 1.5 * centered / (centered.square().mean(1, keepdim=True) + 1e-6).sqrt()
    found = capture(model, (X,)).module.get_submodule("0").weight
    torch.testing.assert_close(found.flatten(1), expected)
    assert type(model[0]) is Scaled  # the model itself is as it was


def test_a_checkpoint_of_the_parameters_it_was_computed_from_is_refused():
    for layer in (Scaled, Standardized):
        prepared = detent.prepare(net(layer), (X,), backend="onnxruntime")
        with pytest.raises(RuntimeError, match=r"0\.(gain|weight_is_computed)"):
            prepared.load_state_dict(net(layer).state_dict())


def test_a_weight_that_depends_on_the_input_is_left_alone():
    found = capture(net(Gated), (X,)).module
    assert not any("weight_is_computed" in name for name, _ in found.named_buffers())


def doubling(_, __, output):
    return output * 2


def halving(_, args):
    return (args[0] / 2,)


@pytest.mark.parametrize(
    ("register", "hook"),
    [
        pytest.param("register_forward_hook", doubling, id="behind"),
        pytest.param("register_forward_pre_hook", halving, id="before"),
    ],
)
def test_a_hook_that_changes_numbers_is_part_of_the_network(register, hook, tmp_path):
    model = net(nn.Conv2d)
    getattr(model[0], register)(hook)
    prepared = detent.prepare(model, (X,), backend="onnxruntime")
    detent.calibrate(prepared, [X])
    # 8 bits in two layers: 1 or 2 percent.
    assert (prepared(X) - model(X)).abs().max() < 0.05 * model(X).abs().max()
    assert detent.deploy(prepared, tmp_path).verify([X], latency=False).holds


def test_a_hook_that_only_looks_stays_on_its_layer():
    model, seen = net(nn.Conv2d), []
    model[0].register_forward_hook(lambda _, __, output: seen.append(output.shape))
    captured = capture(model, (X,))
    assert type(captured.module.get_submodule("0")) is nn.Conv2d
    seen.clear()
    captured.module(X)
    assert len(seen) == 1

"""Weights that a model computes from other parameters are quantized, trained and deployed as the weights they are."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations, parametrize, prune

import detent
from detent.graph import capture


def pruned(module: nn.Module) -> nn.Module:
    return prune.l1_unstructured(module, "weight", 0.5)


class Doubled(nn.Module):
    def forward(self, weight):
        return 2 * weight


def doubled(module: nn.Module) -> nn.Module:
    parametrize.register_parametrization(module, "weight", Doubled())
    return module


COMPUTED = {
    "weight_norm": parametrizations.weight_norm,
    "spectral_norm": parametrizations.spectral_norm,
    "orthogonal": parametrizations.orthogonal,
    "a user's own": doubled,
    "weight_norm, as a hook": nn.utils.weight_norm,
    "spectral_norm, as a hook": nn.utils.spectral_norm,
    "pruned": pruned,
}


def net(computed) -> nn.Module:
    torch.manual_seed(0)
    layers = [computed(nn.Conv2d(3, 8, 3, padding=1)), nn.ReLU(), computed(nn.Conv2d(8, 4, 1)), nn.Flatten()]
    return nn.Sequential(*layers, computed(nn.Linear(64, 3))).eval()


@pytest.fixture
def x():
    return torch.randn(2, 3, 4, 4, generator=torch.Generator().manual_seed(1))


pytestmark = pytest.mark.filterwarnings("ignore:`torch.nn.utils.weight_norm` is deprecated")


@pytest.mark.parametrize("name", COMPUTED)
def test_it_is_captured_with_the_numbers_it_has(name, x):
    model = net(COMPUTED[name])
    wanted = model(x)
    captured = capture(model, (x,))
    # A name for each parameter that is there, as if the layers had never been anything else.
    assert [f"{layer}.{which}" for layer in (0, 2, 4) for which in ("weight", "bias")] == sorted(
        captured.float_tensors, key=lambda key: (key[0], key[2:] != "weight")
    )
    assert all(isinstance(held, nn.Parameter) and held.requires_grad for held in captured.float_tensors.values())
    assert not captured.graph_breaks
    assert torch.equal(captured.module(x), wanted)


@pytest.mark.parametrize("name", COMPUTED)
def test_the_model_that_was_given_stays_as_it_was(name, x):
    model = net(COMPUTED[name]).train()
    model(x).sum().backward()  # in training the weights of hooks are no leaves, which torch does not copy
    before = {key: value.clone() for key, value in model.state_dict().items()}
    prepared = detent.prepare(model, (x,), backend="onnxruntime")
    assert prepared.training
    assert list(model.state_dict()) == list(before)
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())
    model(x).sum().backward()


@pytest.mark.few(3)
@pytest.mark.parametrize("name", COMPUTED)
def test_it_is_deployed(name, x, tmp_path):
    model = net(COMPUTED[name])
    prepared = detent.prepare(model, (x,), backend="onnxruntime")
    detent.calibrate(prepared, [(x,)])
    verdict = detent.deploy(prepared, tmp_path / "out").verify([(x,)], latency=False)
    assert verdict.holds
    wanted = model(x)
    # 8 bits of three layers.
    assert (prepared.eval()(x) - wanted).abs().max() < 0.03 * wanted.abs().max()


def test_in_place_the_model_itself_becomes_plain(x):
    model = net(parametrizations.weight_norm)
    detent.prepare(model, (x,), backend="onnxruntime", inplace=True)
    assert "original0" not in " ".join(model.state_dict())


def test_frozen_weights_stay_frozen(x):
    model = net(parametrizations.weight_norm).requires_grad_(False)
    prepared = detent.prepare(model, (x,), backend="openvino")
    assert not any(held.requires_grad for held in prepared.parameters())
    detent.calibrate(prepared, [(x,)])


def test_gradients_are_of_the_weight_itself(x):
    with torch.no_grad():  # whether it is trained does not depend on where prepare is called
        prepared = detent.prepare(net(parametrizations.weight_norm), (x,), backend="onnxruntime")
    detent.calibrate(prepared, [(x,)])
    prepared.train()(x).sum().backward()
    weight = prepared.get_parameter("0.parametrizations.weight.original")
    assert weight.shape == (8, 3, 3, 3)
    assert weight.grad is not None


class Frozen(dict):
    """As a configuration of diffusers."""

    def __setitem__(self, name, value):
        if name in self:
            raise TypeError("frozen")
        super().__setitem__(name, value)

    def update(self, *_):
        raise TypeError("frozen")


def test_a_model_that_holds_a_frozen_dictionary_is_copied():
    model = nn.Sequential(nn.Linear(4, 4))
    model.config = Frozen(act=torch.relu, made=lambda x: x)
    copy = capture(model, (torch.randn(1, 4),)).module
    assert copy is not model

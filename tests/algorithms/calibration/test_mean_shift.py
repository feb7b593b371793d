"""Biases that make up for the mean errors of weights, as a part of calibrating."""

import pytest
import torch
from torch import nn

import detent
from detent.algorithms import equalize
from detent.recipes import BUILTIN, Recipe
from detent.training import checkpoint
from tests.algorithms.nets import Chain, Convs, images, noise

PLAIN = Recipe.from_dict({"name": "plain", "weight": {"quantizer": "fixed"}})
NOTE = "biases corrected for the mean errors of weights: "


def prepared(net, data, recipe="ptq", backend="onnxruntime"):
    model = detent.prepare(net.eval(), (data[0],), backend=backend, recipe=recipe)
    detent.calibrate(model, data)
    return model


def linear():
    """The scale is 1, so -10.4 becomes -10; the mean of the inputs is (2, 5)."""
    net = nn.Sequential(nn.Linear(2, 1))
    with torch.no_grad():
        net[0].weight.copy_(torch.tensor([[127.0, -10.4]]))
        net[0].bias.fill_(3.0)
    return net, [torch.tensor([[1.0, 4.0], [2.0, 5.0]]), torch.tensor([[3.0, 6.0], [2.0, 5.0]])]


def bias(model):
    layer = model.get_submodule("0")
    held = layer.parametrizations.bias.original if "bias" in getattr(layer, "parametrizations", {}) else layer.bias
    return held.detach()


def test_the_mean_error_is_taken_out_of_the_bias():
    model = prepared(*linear())
    assert bias(model).tolist() == pytest.approx([3.0 - 0.4 * 5], abs=1e-5)
    assert model.plan.notes == (f"{NOTE}1 layers",)


def test_a_recipe_that_does_not_ask_keeps_its_biases():
    model = prepared(*linear(), recipe=PLAIN)
    assert bias(model).tolist() == [3.0]
    assert model.plan.notes == ()
    assert [name for name, entry in BUILTIN.items() if entry.recipe.calibration.correct_biases] == [
        "ptq",
        "percentile",
        "kl",
        "mse",
    ]


def test_weights_on_the_grid_have_no_error():
    net, data = linear()
    with torch.no_grad():
        net[0].weight.round_()
    assert bias(prepared(net, data)).tolist() == [3.0]


def test_calibrating_again_corrects_the_float_bias():
    net, data = linear()
    model = prepared(net, data)
    detent.calibrate(model, [2 * x for x in data])
    assert bias(model).tolist() == pytest.approx([3.0 - 0.4 * 10], abs=1e-5)
    with torch.no_grad():
        bias(model).add_(1)  # as training does
    detent.calibrate(model, data)
    assert bias(model).tolist() == pytest.approx([3.0 - 0.4 * 10 + 1 - 0.4 * 5], abs=1e-5)


def test_an_error_while_calibrating_again_leaves_the_bias():
    net, data = linear()
    model = prepared(net, data)
    before = bias(model).clone()
    with pytest.raises(RuntimeError):
        detent.calibrate(model, [data[0], torch.zeros(1, 3)])
    assert torch.equal(bias(model), before)
    assert len(model.corrected) == len(model.float_originals) == 1


@pytest.mark.parametrize("strategy", [0, 1], ids=["merged", "folded"])
def test_the_network_comes_nearer_to_the_float_one(strategy):
    torch.manual_seed(0)
    net, data = Convs(), [x + 1 for x in images()]
    four_bits = {"name": "four", "weight": {"bits": 4}, "batch_norm": {"strategy": strategy}}
    plain, corrected = (
        prepared(
            net, data, Recipe.from_dict({**four_bits, "calibration": {"correct_biases": asked}}), "academic"
        ).eval()
        for asked in (False, True)
    )
    assert corrected.plan.notes[-1] == f"{NOTE}5 layers"
    assert noise(corrected, net, data) < 0.8 * noise(plain, net, data)


def test_a_bias_of_two_layers_and_transposed_convolutions_stay():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.one, self.two = nn.Conv2d(3, 4, 3), nn.Conv2d(4, 4, 3)
            self.two.bias = self.one.bias
            self.up, self.out = nn.ConvTranspose2d(4, 4, 3), nn.Conv2d(4, 2, 1, bias=False)

        def forward(self, x):
            return self.out(self.up(self.two(self.one(x))))

    net, data = Net(), images(2)
    before = [net.one.bias.detach().clone(), net.up.bias.detach().clone()]
    model = prepared(net, data)
    assert not any(parameter.ndim == 1 for parameter in model.corrected)
    now = dict(model.named_parameters())
    for value in before:
        assert any(value.shape == p.shape and torch.equal(value, p) for p in now.values())


def test_what_rewrites_the_float_model_starts_from_its_own_biases():
    net, data = Chain(2), images(4)
    model = prepared(net, data)
    assert model.float_originals
    equalize(model, data)
    detent.calibrate(model, data)
    assert model.plan.notes[-1].startswith(NOTE)


def test_the_float_state_has_the_biases_of_the_float_model():
    net, data = linear()
    model = prepared(net, data)
    assert detent.float_state_dict(model)["0.bias"].tolist() == [3.0]
    with torch.no_grad():
        model.get_parameter(next(name for name, _ in model.named_parameters() if "bias" in name)).add_(1.0)  # training
    assert detent.float_state_dict(model)["0.bias"].tolist() == pytest.approx([2.0], abs=1e-5)


def test_a_loaded_state_that_is_calibrated_again_is_corrected_once():
    net, data = linear()
    model = prepared(net, data)
    state = model.state_dict()
    assert [name for name in state if name.startswith("corrected_biases.")] == [
        "corrected_biases.0.parametrizations.bias.original"
    ]
    fresh = detent.prepare(net, (data[0],), backend="onnxruntime", recipe="ptq")
    fresh.load_state_dict(state)
    assert torch.equal(bias(fresh), bias(model))
    assert detent.float_state_dict(fresh)["0.bias"].tolist() == [3.0]
    detent.calibrate(fresh, [2 * x for x in data])
    assert bias(fresh).tolist() == pytest.approx([3.0 - 0.4 * 10], abs=1e-5)


def test_a_state_whose_biases_were_trained_has_no_correction_to_take_back():
    net, data = linear()
    model = prepared(net, data)
    with torch.no_grad():
        bias(model).add_(1)  # as training does
    assert not any(name.startswith("corrected_biases.") for name in model.state_dict())


def test_a_float_checkpoint_in_a_calibrated_model_is_not_taken_for_corrected():
    net, data = linear()
    model = prepared(net, data)
    model.load_state_dict({**net.state_dict(), "0.bias": torch.tensor([7.0])})
    assert model.corrected == model.float_originals == {}
    detent.calibrate(model, data)
    assert bias(model).tolist() == pytest.approx([7.0 - 0.4 * 5], abs=1e-5)


def test_a_checkpoint_of_a_calibrated_model_loads_into_one_that_is_not(tmp_path):
    net, data = linear()
    model = prepared(net, data)
    checkpoint.save(tmp_path / "one.safetensors", model)
    fresh = detent.prepare(net, (data[0],), backend="onnxruntime", recipe="ptq")
    checkpoint.load(tmp_path / "one.safetensors", fresh)
    detent.calibrate(fresh, data)
    assert bias(fresh).tolist() == pytest.approx([3.0 - 0.4 * 5], abs=1e-5)

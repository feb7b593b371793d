"""Activations that are clipped where a few samples reach far, as a part of calibrating, if the outputs ask for it."""

import pytest
import torch
from torch import nn

import detent
from detent.algorithms import observing_sample_ranges
from detent.algorithms.common.batches import noise_of
from detent.graph import quantizers_of
from detent.recipes import BUILTIN, Recipe

NOTE = "activations clipped at the mean range of samples: "
ONLY_RANGES = {"name": "ranges", "calibration": {"choose_ranges": True}}


class Identity(nn.Module):
    """The numbers themselves, or what a hardtanh leaves of them."""

    def __init__(self, *, saturates):
        super().__init__()
        self.layer, self.saturates = nn.Linear(2, 2), saturates
        with torch.no_grad():
            self.layer.weight.copy_(torch.eye(2))
            self.layer.bias.zero_()

    def forward(self, x):
        y = self.layer(x)
        return y.clamp(-1, 1) if self.saturates else y


def samples(far=100.0):
    """99 of two numbers from -1 to 1, one of which is 1 or -1, and one that reaches far."""
    x = torch.rand(100, 2, generator=torch.Generator().manual_seed(0)) * 2 - 1
    x[:, 0] = 1.0
    x[7, 0] = far
    return list(x.split(20))


def calibrated(net, data, recipe="ptq", backend="openvino"):
    model = detent.prepare(net.eval(), (data[0],), backend=backend, recipe=recipe)
    detent.calibrate(model, data)
    return model


def scale(model):
    (found,) = [each for each in quantizers_of(model) if each.role == "activation"]
    return float(found.qparams().scale)


TRAINED = ["lsq", "lsq_plus", "pact", "dorefa", "dsq", "qil"]
"""Recipes that start their training there."""


@pytest.mark.parametrize("recipe", ["ptq", *TRAINED, Recipe.from_dict(ONLY_RANGES)], ids=["ptq", *TRAINED, "alone"])
def test_what_one_sample_alone_reaches_is_clipped(recipe):
    model = calibrated(Identity(saturates=True), samples(), recipe)
    assert scale(model) == pytest.approx((99 * 1 + 100) / 100 / 127)
    assert model.plan.notes == (f"{NOTE}1 tensors",)


def test_the_whole_range_stays_if_the_outputs_need_it():
    model = calibrated(Identity(saturates=False), samples())
    assert scale(model) == pytest.approx(100 / 127)
    assert model.plan.notes == ()


@pytest.mark.parametrize(("far", "passes"), [(1.9, 5), (100.0, 11)], ids=["alike", "one stands out"])
def test_samples_that_are_alike_cost_no_further_pass(far, passes):
    data = samples(far)
    model = detent.prepare(Identity(saturates=True).eval(), (data[0],), backend="openvino")
    calls = []
    model.register_forward_pre_hook(lambda *_: calls.append(1))
    detent.calibrate(model, data)
    assert len(calls) == passes  # five batches, and two of them three times


def test_the_range_does_not_depend_on_batches():
    together = calibrated(Identity(saturates=True), [torch.cat(samples())])
    assert scale(together) == pytest.approx(1.99 / 127)


def test_calibrating_again_chooses_again():
    model = calibrated(Identity(saturates=True), samples())
    detent.calibrate(model, samples(far=1.0))
    assert scale(model) == pytest.approx(1 / 127)
    assert model.plan.notes == ()


def test_a_recipe_that_does_not_ask_keeps_the_whole_range():
    model = calibrated(Identity(saturates=True), samples(), Recipe.from_dict({"name": "plain"}))
    assert scale(model) == pytest.approx(100 / 127)
    assert [name for name, entry in BUILTIN.items() if entry.recipe.calibration.choose_ranges] == ["ptq", *TRAINED]


@pytest.mark.parametrize(
    ("activation", "backend"),
    [({"observer": "moving_average"}, "openvino"), ({"scale": "power_of_two"}, "openvino"), ({}, "vitis")],
    ids=["another-observer", "power-of-two", "a-target-with-another"],
)
def test_other_ranges_are_not_observed(activation, backend):
    recipe = Recipe.from_dict({**ONLY_RANGES, "activation": activation})
    model = detent.prepare(Identity(saturates=True).eval(), (samples()[0],), backend=backend, recipe=recipe)
    with observing_sample_ranges(model) as found:
        assert found == []


def test_a_network_whose_numbers_decide_how_many_come_out_is_clipped_if_as_many_then_come_out():
    class Large(nn.Module):
        def forward(self, y):
            return y[y > 0.9999]

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.identity, self.large = Identity(saturates=True), Large()

        def forward(self, x):
            return self.large(self.identity(x))

    data = samples()
    model = detent.prepare(Net().eval(), (data[0],), backend="openvino", leaf_modules=["large"])
    detent.calibrate(model, data)
    assert scale(model) == pytest.approx(1.99 / 127)


def test_noise_is_the_squared_error_and_infinite_between_shapes():
    cpu = torch.device("cpu")
    one, other = torch.tensor([1.0, 2.0]), torch.tensor([1.5, 0.0])
    assert noise_of([[one], [one, other]], [[other], [one, other]], cpu) == 4.25
    assert noise_of([[one]], [[one[:1]]], cpu) == float("inf")
    assert noise_of([[one]], [[]], cpu) == float("inf")

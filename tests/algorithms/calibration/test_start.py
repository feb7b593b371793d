"""The start of trained quantizers: never far behind plain calibration, at any width."""

from itertools import product

import pytest
import torch
from torch import nn

import detent
from detent.algorithms import choose_start
from detent.algorithms.common.errors_core import Deviation
from detent.graph import observing, quantizers_of
from detent.numerics import QParams
from detent.recipes import Recipe
from tests.models import MODELS

NETWORKS = ("residual_cnn", "mobile_cnn", "transformer_block", "functional_ops")


def recipe_of(quantizer, bits, **more):
    request = {"quantizer": quantizer, "bits": bits, **more}
    return Recipe.from_dict({"name": "x", "weight": {**request, "granularity": "per_channel"}, "activation": request})


def calibrated(net, batches, recipe):
    prepared = detent.prepare(net, batches[0], backend="academic", recipe=recipe)
    detent.calibrate(prepared, batches)
    return prepared.eval()


@torch.no_grad()
def sqnr(net, prepared, batches):
    deviation = Deviation()
    for batch in batches:
        deviation.add(net(*batch), prepared(*batch))
    return deviation.sqnr


@pytest.fixture(scope="module", params=NETWORKS)
def case(request):
    torch.manual_seed(0)
    entry = MODELS[request.param]
    return entry.build().eval(), [entry.inputs() for _ in range(16)], [entry.inputs() for _ in range(16)]


POWERS = {"scale": "power_of_two", "symmetric": True}
TRAINED = {  # for which tensors, and what else is asked of them
    "lsq": (("weight", "activation"), {}),
    "lsq_plus": (("weight", "activation"), {}),
    "dsq": (("weight", "activation"), {}),
    "qil": (("weight", "activation"), {"symmetric": True}),
    "tqt": (("weight", "activation"), POWERS),
    "pact": (("activation",), {}),
    "dorefa": (("activation",), {"symmetric": True}),
}


@pytest.mark.slow
@pytest.mark.pairwise(strength=1)
@pytest.mark.parametrize("bits", [8, 4, 3])
@pytest.mark.parametrize("quantizer", TRAINED)
def test_calibration_leaves_what_is_trained_within_1_db_of_ptq(case, quantizer, bits):
    net, batches, unseen = case
    roles, more = TRAINED[quantizer]
    plain = recipe_of("fixed", bits, **more).to_dict()
    trained = Recipe.from_dict({**plain, **{role: {**plain[role], "quantizer": quantizer} for role in roles}})
    found = sqnr(net, calibrated(net, batches, trained), unseen)
    assert found > sqnr(net, calibrated(net, batches, Recipe.from_dict(plain)), unseen) - 1.0


def test_methods_that_use_as_many_codes_below_zero_as_above_are_measured_so():
    weight = nn.Linear(2, 1, bias=False)
    with torch.no_grad():
        weight.weight.copy_(torch.tensor([[-12.8, 1.0]]))
    x = torch.tensor([[-12.8, 1.0]])
    for quantizer, scale in (("lsq", 12.8 / 128), ("qil", 12.8 / 127)):
        recipe = recipe_of(quantizer, 8, symmetric=True, signed=True)
        for one in quantizers_of(calibrated(nn.Sequential(weight), [(x,)], recipe)):
            assert one.qparams().scale.flatten().tolist() == pytest.approx([scale])


def test_at_8_bits_lsq_starts_exactly_where_ptq_is(case):
    net, batches, _ = case
    plain, trained = (calibrated(net, batches[:2], recipe_of(name, 8)) for name in ("fixed", "lsq"))
    for one, other in zip(quantizers_of(plain), quantizers_of(trained), strict=True):
        assert torch.equal(one.qparams().scale, other.qparams().scale)


def three_layers():
    """The first and the last have 8 bits whatever is asked."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8)).eval()


@pytest.mark.parametrize(("weights", "activations"), [(0, 1), (1, 2), (2, 0)])
def test_the_outputs_decide_and_for_weights_and_activations_apart(weights, activations):
    x = torch.randn(16, 8, generator=torch.Generator().manual_seed(1))
    prepared = calibrated(three_layers(), [(x,)], recipe_of("lsq", 3, observer="minmax"))
    quantizers = quantizers_of(prepared)
    measured = {one: one.qparams() for one in quantizers}
    for one, right in measured.items():
        starts = [QParams(right.scale / 8, right.zero_point)] * 3
        starts[weights if one.role == "weight" else activations] = right
        one.starts = tuple(starts)
    choose_start(prepared, [(x,)])
    for one, right in measured.items():
        assert torch.equal(one.qparams().scale, right.scale)
        assert one.starts == ()


def test_the_outputs_choose_among_the_cube_the_square_and_the_whole_range():
    x = torch.randn(16, 8, generator=torch.Generator().manual_seed(1))
    prepared = detent.prepare(three_layers(), (x,), backend="academic", recipe=recipe_of("lsq", 3)).eval()
    with observing(prepared):
        prepared(x)
    quantizers = [one for one in quantizers_of(prepared) if one.starts]
    assert [len(one.starts) for one in quantizers] == [3, 3]  # the weight and the input of the middle layer
    noises = {}
    for choice in product(range(3), repeat=2):
        for one in quantizers:
            one.initialize(one.starts[choice[one.role == "activation"]])
        noises[choice] = sqnr(three_layers(), prepared, [(x,)])
    starts = {one: one.starts for one in quantizers}
    choose_start(prepared, [(x,)])
    best = max(noises, key=noises.get)
    for one, known in starts.items():
        assert torch.equal(one.qparams().scale, known[best[one.role == "activation"]].scale)


def test_an_observer_that_is_named_is_obeyed():
    x = torch.randn(16, 8, generator=torch.Generator().manual_seed(1))
    prepared = detent.prepare(three_layers(), (x,), backend="academic", recipe=recipe_of("lsq", 3, observer="mse"))
    with observing(prepared):
        prepared(x)
    assert [one.starts for one in quantizers_of(prepared)] == [()] * 6


@pytest.mark.by_default("transformer_block", "functional_ops")
def test_a_loop_of_ones_own_starts_where_calibrate_does(case):
    net, batches, _ = case
    recipe = recipe_of("lsq", 3)
    there = calibrated(net, batches, recipe)
    here = detent.prepare(net, batches[0], backend="academic", recipe=recipe).eval()
    with detent.observing(here), torch.no_grad():
        for batch in batches:
            here(*batch)
    for one, other in zip(quantizers_of(there), quantizers_of(here), strict=True):
        assert torch.equal(one.qparams().scale, other.qparams().scale)
        assert other.starts == ()

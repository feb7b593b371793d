"""A block in which the model is float and measured: all scales at its end, or none."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

import detent
from detent.algorithms.common.floating import as_float
from detent.errors import NotCalibratedError, RangeError
from detent.graph import modes_to_observe, observing, quantizers_of
from detent.numerics import QParams
from detent.recipes import Recipe
from tests.graph.nets import Net, assert_close, run


def prepared_pair(recipe="ptq"):
    """Two convolutions with a relu between them, prepared, and the float network."""
    torch.manual_seed(1)
    net = Net(lambda n, x: n.b(n.relu(n.a(x))), a=nn.Conv2d(3, 4, 1), relu=nn.ReLU(), b=nn.Conv2d(4, 2, 1)).eval()
    x = torch.randn(2, 3, 5, 5)
    return detent.prepare(net, (x,), backend="onnxruntime", recipe=recipe), net, x


def scales(model):
    return {quantizer.name: quantizer.qparams().scale.tolist() for quantizer in quantizers_of(model)}


def test_inside_the_block_the_model_is_float():
    model, net, x = prepared_pair()
    with observing(model), torch.no_grad():
        assert_close(model(x), net(x), 1e-6)  # the same convolutions
    assert not torch.equal(run(model, (x,)), run(net, (x,)))


def test_scales_are_set_at_the_end_of_the_block_from_all_that_was_seen():
    model, _, x = prepared_pair()
    with observing(model), torch.no_grad():
        model(x.clamp(-1, 1))
        model(torch.full_like(x, 3.0))
        assert not any(quantizer.calibrated for quantizer in quantizers_of(model))
    assert all(quantizer.calibrated for quantizer in quantizers_of(model))
    assert scales(model)["x"] == pytest.approx((3.0 - x.clamp(-1, 1).min().item()) / 255, rel=1e-6)


def test_after_the_block_nothing_of_it_is_left():
    model, _, x = prepared_pair()
    before = {name: set(vars(module)) for name, module in model.named_modules()}
    with observing(model), torch.no_grad():
        model(x)
    assert {name: set(vars(module)) for name, module in model.named_modules()} == before
    first = scales(model)
    run(model, (100 * x,))
    assert scales(model) == first


def test_a_second_block_measures_anew():
    model, _, x = prepared_pair()
    for gain in (10, 1):
        with observing(model), torch.no_grad():
            model(gain * x)
    twin, _, _ = prepared_pair()
    with observing(twin), torch.no_grad():
        twin(x)
    assert scales(model) == scales(twin)


def test_parameters_keep_their_identity():
    model, _, x = prepared_pair("lsq")
    before = [id(p) for p in model.parameters()]
    with observing(model), torch.no_grad():
        model(x)
    assert [id(p) for p in model.parameters()] == before


class StopError(Exception):
    pass


@pytest.mark.parametrize("calibrated", [False, True], ids=["first-time", "second-time"])
def test_a_block_that_raises_sets_nothing(calibrated):
    model, net, x = prepared_pair(Recipe(name="plain"))
    if calibrated:
        detent.calibrate(model, [x])
    before = copy.deepcopy(model.state_dict())

    def interrupted():
        with observing(model), torch.no_grad():
            model(5 * x)
            raise StopError

    with pytest.raises(StopError):
        interrupted()
    for name, tensor in model.state_dict().items():
        torch.testing.assert_close(tensor, before[name], rtol=0, atol=0, equal_nan=True)
    assert all(quantizer.calibrated is calibrated for quantizer in quantizers_of(model))
    if not calibrated:
        with pytest.raises(NotCalibratedError):
            run(model, (x,))
    with observing(model), torch.no_grad():
        assert_close(model(x), net(x), 1e-6)  # a block still works


def test_the_error_of_a_block_is_the_users_own_even_when_nothing_was_seen():
    model, *_ = prepared_pair()
    with pytest.raises(StopError), observing(model):
        raise StopError


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_bad_data_is_refused_by_name_and_leaves_all_scales_as_they_were(bad):
    model, _, x = prepared_pair()
    detent.calibrate(model, [x])
    before = scales(model)
    broken = x.clone()
    broken[0, 0, 0, 0] = bad
    with pytest.raises(RangeError) as refusal:
        detent.calibrate(model, [4 * x, broken])
    assert "'x'" in str(refusal.value)
    assert scales(model) == before
    assert all(quantizer.calibrated for quantizer in quantizers_of(model))
    assert not any("forward" in vars(module) for module in model.modules())


def test_a_nan_weight_is_refused_by_name():
    model, _, x = prepared_pair()
    with torch.no_grad():
        model.b.parametrizations.weight.original[0, 0] = torch.nan
    with pytest.raises(RangeError, match=r"b\.weight"):
        detent.calibrate(model, [x])
    assert not any(quantizer.calibrated for quantizer in quantizers_of(model))


@pytest.mark.parametrize("batches", [pytest.param([], id="list"), pytest.param(iter(()), id="iterator")])
def test_no_batch_at_all_is_refused(batches):
    model, *_ = prepared_pair()
    with pytest.raises(RangeError) as refusal:
        detent.calibrate(model, batches)
    assert "no batch" in refusal.value.found
    assert not any(quantizer.calibrated for quantizer in quantizers_of(model))


def test_quantizers_that_nothing_reached_stay_as_they_were():
    model, _, _ = prepared_pair()
    with observing(model), torch.no_grad():
        model.a.weight.sum()  # reads the weight of one layer
    assert [quantizer.name for quantizer in quantizers_of(model) if quantizer.calibrated] == ["a.weight"]


def test_with_quantized_the_model_runs_on_the_scales_it_has():
    model, net, x = prepared_pair()
    detent.calibrate(model, [x])
    expected = run(model, (x,))
    with observing(model, quantized=True), torch.no_grad():
        assert torch.equal(model(x), expected)
        assert not torch.equal(model(x), net(x))


def test_with_quantized_later_layers_are_measured_on_what_earlier_ones_give():
    model, _, x = prepared_pair()
    detent.calibrate(model, [x])
    first = scales(model)
    by_name = {quantizer.name: quantizer for quantizer in quantizers_of(model)}
    by_name["x"].initialize(QParams(torch.tensor(1.0), torch.tensor(128)))  # a coarse input
    with observing(model, quantized=True), torch.no_grad():
        model(x)
    second = scales(model)
    assert second["x"] == first["x"], "the input itself is as it was"
    assert second["relu"] != first["relu"], "the relu sees the convolution of a rounded input"


def test_a_recipe_asks_for_the_second_pass():
    recipe = Recipe.from_dict(
        {
            "name": "again",
            "weight": {"bits": 8},
            "calibration": {"inputs": "quantized"},
        }
    )
    plain, _, x = prepared_pair(Recipe(name="plain"))
    again, _, _ = prepared_pair(recipe)
    for model in (plain, again):
        detent.calibrate(model, [x])
    ours, theirs = scales(again), scales(plain)
    assert ours["x"] == theirs["x"]
    assert ours["relu"] != theirs["relu"]
    with observing(plain, quantized=True), torch.no_grad():
        plain(x)
    assert scales(plain) == ours


def test_every_quantizer_is_listed_once():
    net = Net(lambda n, x: n.a(n.a(x)), a=nn.Conv2d(3, 3, 1))
    model = detent.prepare(net, (torch.randn(2, 3, 4, 4),), backend="onnxruntime")
    found = quantizers_of(model)
    assert len(found) == len({id(quantizer) for quantizer in found}) > 2
    assert [quantizer.name for quantizer in found].count("a.weight") == 1


def test_with_quantized_a_model_without_scales_is_refused_by_name():
    model, _, x = prepared_pair()
    with pytest.raises(NotCalibratedError, match="'x'"), observing(model, quantized=True), torch.no_grad():
        model(x)
    assert not any(quantizer.calibrated for quantizer in quantizers_of(model))


def test_observing_inside_of_a_float_block_sets_scales_and_leaves_the_model_float():
    model, net, x = prepared_pair()
    twin, _, _ = prepared_pair()
    with torch.no_grad():
        with as_float(model):
            with observing(model):
                assert_close(model(x), net(x), 1e-6)
            assert_close(model(x), net(x), 1e-6)
        with observing(twin):
            twin(x)
        assert scales(model) == scales(twin)
        assert torch.equal(model(x), twin(x))


def test_observing_quantized_inside_of_a_float_block_runs_quantized():
    model, _, x = prepared_pair()
    with torch.no_grad():
        with observing(model):
            model(x)
        quantized = model(x)
        with as_float(model), observing(model, quantized=True):
            assert torch.equal(model(x), quantized)


def test_a_float_block_inside_of_observing_is_not_observed():
    model, net, x = prepared_pair()
    twin, _, _ = prepared_pair()
    with torch.no_grad():
        with observing(model):
            model(x)
            with as_float(model):
                assert_close(model(100 * x), net(100 * x), 1e-4)
            model(x / 2)
        with observing(twin):
            twin(x)
            twin(x / 2)
    assert scales(model) == scales(twin)


def test_an_inner_block_observes_for_itself():
    model, _, x = prepared_pair()
    with torch.no_grad(), observing(model):
        model(x)
        with observing(model):
            model(100 * x)
        inner = scales(model)
    twin, _, _ = prepared_pair()
    with torch.no_grad(), observing(twin):
        twin(x)
    assert scales(model) == scales(twin)
    assert inner["x"] == pytest.approx(100 * scales(model)["x"], rel=1e-5)


class Modal(nn.Module):
    """Predictions are quantized where torch's kernels give them, which the first mode has none of."""

    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(3, 4)

    def forward(self, x, mode="tensor"):
        scores = self.fc(x)
        return scores.softmax(1) if mode == "predict" else scores


def test_every_mode_with_a_quantizer_of_its_own_is_observed():
    x = torch.randn(5, 3)
    modes = {name: {"mode": name} for name in ("tensor", "predict")}
    model = detent.prepare(Modal(), (x,), backend="native", modes=modes)
    assert modes_to_observe(model) == [{}, {"mode": "predict"}]
    detent.calibrate(model, [x])
    assert all(quantizer.calibrated for quantizer in quantizers_of(model))
    same = detent.prepare(Modal(), (x,), backend="openvino", modes=modes)
    assert modes_to_observe(same) == [{}]


def test_float_ranges_in_a_mode_that_is_not_run_are_no_error():
    x = torch.randn(5, 3)
    modes = {name: {"mode": name} for name in ("tensor", "predict")}
    model = detent.prepare(Modal(), (x,), backend="openvino", modes=modes)
    detent.calibrate(model, [x])
    with observing(model, only_float=True), torch.no_grad():
        model(x)
    with pytest.raises(RangeError, match="no batch was run"), observing(model, only_float=True):
        pass

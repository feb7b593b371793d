"""Float names: float checkpoints go into a prepared model and come back out of it."""

from __future__ import annotations

import copy
import io

import pytest
import torch
from torch import nn

import detent
from detent.graph import float_state_dict, quantizers_of
from detent.recipes import Recipe
from tests.graph.nets import EIGHT, assert_close, made, run, varied
from tests.models import MODELS

NETS = ["residual_cnn", "mobile_cnn", "conv_transpose_bn", "linear_bn", "reused_module", "control_flow", "vit_block"]
STRATEGIES = [-1, 0, 1, 2, 3, 4]

by_net = pytest.mark.parametrize("name", NETS)
# Every network, and every strategy. To trace what has a graph break takes half a second: it shows one strategy.
in_part = pytest.mark.pairwise(goals=lambda name, strategy: [name] if name == "control_flow" else [name, strategy])
by_strategy = pytest.mark.parametrize("strategy", STRATEGIES, ids=lambda number: f"strategy{number}")


def prepared(name, strategy=0, *, model=None, calibrated=True, quantizer="fixed"):
    float_model, inputs = made(name)
    recipe = Recipe.from_dict(
        {
            "name": "mine",
            "weight": {"quantizer": quantizer},
            "activation": {"quantizer": quantizer},
            "batch_norm": {"strategy": strategy},
        }
    )
    result = detent.prepare(model or float_model, inputs, backend=EIGHT, recipe=recipe)
    if calibrated:
        detent.calibrate(result, [inputs])
    return result, inputs


def scales(model):
    return {quantizer.name: quantizer.qparams().scale.tolist() for quantizer in quantizers_of(model)}


def assert_different(left, right):
    assert float((left - right).abs().max()) > 1e-3


def assert_same_state(left, right):
    assert list(left) == list(right)
    for name in left:
        torch.testing.assert_close(left[name], right[name], rtol=0, atol=0, equal_nan=True)


# --- a float checkpoint goes in ----------------------------------------------------------------------------


@in_part
@by_strategy
@by_net
def test_a_float_checkpoint_loads_strictly_and_computes_as_if_prepared_from_it(name, strategy):
    original, inputs = made(name)
    other = varied(original)
    model, _ = prepared(name, strategy, calibrated=False)
    result = model.load_state_dict(other.state_dict(), strict=True)
    assert (result.missing_keys, result.unexpected_keys) == ([], [])
    twin, _ = prepared(name, strategy, model=other, calibrated=False)
    for one in (model, twin):
        detent.calibrate(one, [inputs])
    assert scales(model) == scales(twin)
    # The same weights on the same grids: the same numbers.
    assert_close(run(model, inputs), run(twin, inputs), 1e-6)
    assert_different(run(model, inputs), run(prepared(name, strategy)[0], inputs))


@by_strategy
def test_loading_leaves_the_checkpoint_as_it_was(strategy):
    other, _ = made("residual_cnn", seed=5)
    checkpoint = other.state_dict()
    kept = copy.deepcopy(checkpoint)
    model, _ = prepared("residual_cnn", strategy)
    model.load_state_dict(checkpoint)
    assert_same_state(checkpoint, kept)


@in_part
@by_strategy
@pytest.mark.parametrize("name", ["residual_cnn", "control_flow", "vit_block"])
def test_a_float_checkpoint_changes_no_scale_and_no_phase(name, strategy):
    model, _ = prepared(name, strategy)
    before = scales(model)
    flags = [module.training for module in model.modules()]
    model.load_state_dict(made(name, seed=5)[0].state_dict())
    assert scales(model) == before
    assert all(quantizer.calibrated for quantizer in quantizers_of(model))
    assert [module.training for module in model.modules()] == flags


@pytest.mark.parametrize("name", ["residual_cnn", "vit_block", "control_flow"])
def test_a_float_checkpoint_does_not_make_it_calibrated(name):
    model, _ = prepared(name, calibrated=False)
    model.load_state_dict(made(name, seed=5)[0].state_dict())
    assert not any(quantizer.calibrated for quantizer in quantizers_of(model))


def broken(name, change):
    """A float checkpoint that is not quite one."""
    state = dict(made(name, seed=5)[0].state_dict())
    change(state)
    return state


@pytest.mark.parametrize("strategy", [0, 4], ids=lambda number: f"strategy{number}")
@pytest.mark.parametrize(
    ("change", "said"),
    [
        pytest.param(lambda s: s.pop("fc.weight"), "fc", id="missing-weight"),
        pytest.param(lambda s: s.pop("bn1.running_mean"), "bn1", id="missing-statistics"),
        pytest.param(lambda s: s.update(extra=torch.zeros(1)), "extra", id="one-too-many"),
        pytest.param(lambda s: s.update({"fc.weight": torch.zeros(3, 3)}), "fc", id="wrong-shape"),
    ],
)
def test_a_float_checkpoint_that_does_not_fit_is_refused(change, said, strategy):
    model, _ = prepared("residual_cnn", strategy)
    with pytest.raises(RuntimeError, match=said):  # what torch raises
        model.load_state_dict(broken("residual_cnn", change))


@pytest.mark.parametrize("strategy", [0, 4])
def test_a_model_inside_another_takes_its_part_of_a_checkpoint(strategy):
    other, inputs = made("residual_cnn", seed=5)
    model, _ = prepared("residual_cnn", strategy)
    holder = nn.ModuleDict({"student": model, "head": nn.Linear(5, 5)})
    state = {f"student.{name}": tensor for name, tensor in other.state_dict().items()}
    holder.load_state_dict({**state, "head.weight": torch.eye(5), "head.bias": torch.zeros(5)})
    alone, _ = prepared("residual_cnn", strategy)
    alone.load_state_dict(other.state_dict())
    assert_close(run(model, inputs), run(alone, inputs), 0)


class Tied(nn.Module):
    """Two names for one weight, as in a language model."""

    def __init__(self):
        super().__init__()
        self.encode, self.decode = nn.Linear(6, 6), nn.Linear(6, 6)
        self.decode.weight = self.encode.weight

    def forward(self, x):
        return self.decode(self.encode(x).relu())


def test_tied_weights_stay_tied_and_keep_both_names():
    x, original = torch.randn(4, 6), Tied().eval()
    model = detent.prepare(original, (x,), backend=EIGHT)
    state = float_state_dict(model)
    assert set(state) == set(original.state_dict())
    other = Tied().eval()
    model.load_state_dict(other.state_dict())
    with detent.observing(model), torch.no_grad():
        assert_close(model(x), other(x), 1e-6)  # the same two products
    ours = model.encode.parametrizations.weight.original
    assert ours is model.decode.parametrizations.weight.original


# --- and comes back out ------------------------------------------------------------------------------------


@in_part
@by_strategy
@by_net
def test_float_weights_load_strictly_into_the_float_model_and_give_its_function(name, strategy):
    model, inputs = prepared(name, strategy)
    original, _ = made(name)
    empty = MODELS[name].build().eval()  # other random numbers
    state = float_state_dict(model)
    assert set(state) == set(original.state_dict())
    empty.load_state_dict(state, strict=True)
    # Merging and undoing it are two roundings of each weight.
    assert_close(run(empty, inputs), run(original, inputs), 1e-5)


@by_strategy
@pytest.mark.parametrize("name", ["residual_cnn", "linear_bn"])
def test_float_weights_are_read_before_calibration_too(name, strategy):
    model, inputs = prepared(name, strategy, calibrated=False)
    empty = MODELS[name].build().eval()
    empty.load_state_dict(float_state_dict(model))
    assert_close(run(empty, inputs), run(made(name)[0], inputs), 1e-5)  # two roundings of each merged weight


@by_strategy
def test_what_training_changed_comes_back(strategy):
    model, inputs = prepared("residual_cnn", strategy, quantizer="lsq")
    before = {name: tensor.clone() for name, tensor in float_state_dict(model).items()}
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    model.train()
    for _ in range(2):
        optimizer.zero_grad()
        model(*inputs).square().mean().backward()
        optimizer.step()
    after = float_state_dict(model)
    assert not torch.equal(after["conv1.weight"], before["conv1.weight"])
    assert not torch.equal(after["fc.bias"], before["fc.bias"])
    empty = MODELS["residual_cnn"].build().eval()
    empty.load_state_dict(after)
    with detent.observing(model.eval()), torch.no_grad():
        # Inside the block the prepared model is its float function.
        assert_close(model(*inputs), empty(*inputs), 1e-5)


@in_part
@by_strategy
@by_net
def test_out_and_in_again_is_the_same_model(name, strategy):
    model, inputs = prepared(name, strategy)
    before = run(model, inputs)
    model.load_state_dict(float_state_dict(model))
    # Weights come back to the last bit or the one before; on an 8-bit grid few of them can change a code.
    assert_close(run(model, inputs), before, 0.02)


@by_strategy
def test_float_names_carry_no_quantizer(strategy):
    model, _ = prepared("residual_cnn", strategy)
    words = ("quantizer", "parametrizations", "scale")
    assert [name for name in float_state_dict(model) if any(word in name for word in words)] == []


# --- a prepared checkpoint ---------------------------------------------------------------------------------


@in_part
@by_strategy
@by_net
def test_its_own_state_dict_round_trips(name, strategy):
    model, inputs = prepared(name, strategy)
    twin, _ = prepared(name, strategy, calibrated=False)
    with torch.no_grad():
        for parameter in twin.parameters():
            parameter.zero_()
    twin.load_state_dict(model.state_dict(), strict=True)
    assert_same_state(twin.state_dict(), model.state_dict())
    assert all(quantizer.calibrated for quantizer in quantizers_of(twin))
    assert_close(run(twin, inputs), run(model, inputs), 0)


@pytest.mark.parametrize("quantizer", ["fixed", "lsq"])
def test_an_uncalibrated_state_makes_it_uncalibrated(quantizer):
    calibrated, _ = prepared("residual_cnn", quantizer=quantizer)
    raw, _ = prepared("residual_cnn", quantizer=quantizer, calibrated=False)
    calibrated.load_state_dict(raw.state_dict())
    assert not any(one.calibrated for one in quantizers_of(calibrated))


@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
def test_loading_never_changes_the_training_flag(training):
    model, _ = prepared("residual_cnn", 4)
    twin, _ = prepared("residual_cnn", 4, calibrated=False)
    twin.train(training)
    model.train(not training)
    twin.load_state_dict(model.state_dict())
    assert {module.training for module in twin.modules()} == {training}


@pytest.mark.slow
@in_part
@by_strategy
@pytest.mark.parametrize("name", ["residual_cnn", "control_flow"])
def test_the_state_dict_goes_through_a_file_without_pickled_code(name, strategy):
    model, inputs = prepared(name, strategy, quantizer="lsq")
    file = io.BytesIO()
    torch.save(model.state_dict(), file)
    file.seek(0)
    state = torch.load(file, weights_only=True)
    twin, _ = prepared(name, strategy, calibrated=False, quantizer="lsq")
    twin.load_state_dict(state)
    assert_close(run(twin, inputs), run(model, inputs), 0)


def test_a_deep_copy_still_reads_float_checkpoints():
    model, inputs = prepared("residual_cnn")
    twin = copy.deepcopy(model)
    twin.load_state_dict(made("residual_cnn", seed=5)[0].state_dict())
    expected = run(model, inputs)
    model.load_state_dict(made("residual_cnn", seed=5)[0].state_dict())
    assert_close(run(twin, inputs), run(model, inputs), 0)
    assert not torch.equal(run(twin, inputs), expected)
    assert set(float_state_dict(twin)) == set(made("residual_cnn")[0].state_dict())

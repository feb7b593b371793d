"""`prepare` and `calibrate` on real networks: the numbers of the float model, and clear refusals."""

from __future__ import annotations

import copy
import os
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import detent
from detent.errors import (
    CaptureError,
    DataError,
    FloatModelWarning,
    NotCalibratedError,
    RecipeError,
    SchemeError,
    UnknownNameError,
)
from detent.graph import quantizers_of
from detent.recipes import Recipe
from detent.targets import BACKENDS
from tests.graph.nets import EIGHT, SIXTEEN, Net, assert_close, every_model, fresh_inputs, made, run, tensors

SIXTEEN_BITS = Recipe.from_dict({"name": "sixteen", "weight": {"bits": 16}, "activation": {"bits": 16}})
PTQ = Recipe.named("ptq")


@pytest.fixture(autouse=True)
def one_thread_and_one_seed():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    yield
    torch.set_num_threads(threads)


def prepared(name, *, recipe="ptq", backend=EIGHT, calibrated=True):
    model, inputs = made(name)
    result = detent.prepare(model, inputs, backend=backend, recipe=recipe)
    if calibrated:
        detent.calibrate(result, [inputs])
    return result, model, inputs


def recipe_with(**given):
    return Recipe.from_dict({"name": "mine", **given})


def facts(model):
    """All that `prepare` could have changed in a model, as comparable values."""
    return {
        path: (
            id(module),
            type(module),
            module.training,
            sorted(vars(module)),
            [(name, id(p), p.requires_grad) for name, p in module.named_parameters(recurse=False)],
            [value.sum().item() for value in module.state_dict().values()],
        )
        for path, module in model.named_modules()
    }


# --- the numbers of the float model ------------------------------------------------------------------------


@every_model
def test_with_16_bits_it_is_the_float_model(name):
    model, inputs = made(name)
    result = detent.prepare(model, inputs, backend=SIXTEEN, recipe=SIXTEEN_BITS)
    batches = [inputs, fresh_inputs(name)]
    detent.calibrate(result, batches)
    assert any(quantizer.role == "weight" for quantizer in quantizers_of(result))
    # 1e-3 of the largest output. A random MobileNetV2 multiplies relative noise in its input by 32 (a trained one by 2,
    # which is within 3.8e-4 here), so that half a step of the grids, and nothing but that, is seen as 2e-3.
    tolerance = noise_of_half_a_step(result, model, batches) if name == "mobilenet_v2" else 1e-3
    assert 0 < distance(result, model, batches) <= tolerance


def distance(ours, theirs, batches):
    """The greatest difference of two models, in units of the largest output, or of 1 if all are smaller."""
    pairs = [pair for x in batches for pair in zip(tensors(run(ours, x)), tensors(run(theirs, x)), strict=True)]
    return max(float((a - b).abs().max()) / max(1.0, float(b.abs().max())) for a, b in pairs)


def noise_of_half_a_step(result, model, batches):
    """The distance from `model` that is left when nothing is quantized, but moved by up to half a step by chance."""

    def noisy(quantizer):
        scale, expand = quantizer.qparams().scale, quantizer.scheme.granularity.expand
        return lambda _, args, __: args[0] + (torch.rand_like(args[0]) - 0.5) * expand(scale, args[0].ndim)

    twin = copy.deepcopy(result)
    for quantizer in quantizers_of(twin):
        quantizer.register_forward_hook(noisy(quantizer))
    return max(distance(twin, model, batches) for _ in range(3))


@pytest.mark.few(13)
@every_model
def test_with_8_bits_it_is_close_to_the_float_model(name):
    result, model, inputs = prepared(name)
    for a, b in zip(tensors(run(result, inputs)), tensors(run(model, inputs)), strict=True):
        assert a.isfinite().all()
        noise = (a - b).square().mean().sqrt() / b.square().mean().sqrt()
        # Some fifty layers of 8 bits in a random network: 1 to 30 percent. A broken one is off by 100.
        assert 1e-5 < noise < 0.5


@pytest.mark.parametrize("strategy", [-1, 0, 1, 2, 3, 4])
@pytest.mark.parametrize("name", ["residual_cnn", "conv_transpose_bn", "linear_bn"])
def test_every_batch_norm_strategy_is_the_float_model_at_16_bits(name, strategy):
    model, inputs = made(name)
    recipe = recipe_with(weight={"bits": 16}, activation={"bits": 16}, batch_norm={"strategy": strategy})
    result = detent.prepare(model, inputs, backend=SIXTEEN, recipe=recipe)
    detent.calibrate(result, [inputs])
    expected = run(model, inputs)
    assert (run(result, inputs) - expected).abs().max() <= 1e-3 * max(1.0, float(expected.abs().max()))


def test_the_backend_decides_the_strategy_a_recipe_does_not_name():
    model, inputs = made("residual_cnn")
    four = replace(SIXTEEN, batch_norm=4)
    result = detent.prepare(model, inputs, backend=four, recipe=SIXTEEN_BITS)
    assert isinstance(result.conv1, detent.graph.FoldedBatchNorm)
    named = recipe_with(batch_norm={"strategy": 0}, weight={"bits": 16}, activation={"bits": 16})
    assert isinstance(detent.prepare(model, inputs, backend=four, recipe=named).conv1, nn.Conv2d)


@pytest.mark.parametrize(
    ("asked", "strategy"),
    [
        pytest.param({"weight": {"quantizer": "lsq"}}, 4, id="weights-trained"),
        pytest.param({"activation": {"quantizer": "pact"}}, 4, id="activations-trained"),
        pytest.param({"rules": [{"match": {"name": "fc"}, "weight": {"quantizer": "lsq"}}]}, 4, id="a-rule-trains"),
        pytest.param({"weight": {"quantizer": "fixed"}}, 0, id="calibrated"),
        pytest.param({"weight": {"quantizer": "lsq"}, "batch_norm": {"strategy": 0}}, 0, id="named"),
        pytest.param({"weight": {"quantizer": "lsq"}, "algorithms": [{"name": "equalize"}]}, 0, id="weights-changed"),
    ],
)
def test_what_is_trained_keeps_its_batch_norms(asked, strategy):
    model, inputs = made("residual_cnn")
    result = detent.prepare(model, inputs, backend="openvino", recipe=Recipe.from_dict({"name": "mine", **asked}))
    assert getattr(result.conv1, "strategy", 0) == strategy
    norms = len([module for module in result.modules() if isinstance(module, nn.BatchNorm2d)])
    notes = (
        f"{norms} batch norms are trained, and folded into the weights in front of them at every step (strategy 4); "
        "deploying merges them",
    )
    assert result.plan.notes == (notes if strategy else ())


def test_a_target_without_folding_leaves_batch_norms_alone_in_training_too():
    model, inputs = made("residual_cnn")
    result = detent.prepare(model, inputs, backend="academic", recipe="lsq")
    assert isinstance(result.conv1, nn.Conv2d)
    assert isinstance(result.bn1, nn.BatchNorm2d)


def test_a_trained_network_deploys_what_it_computes(tmp_path):
    model, inputs = made("residual_cnn")
    result = detent.prepare(model, inputs, backend="openvino", recipe="lsq")
    detent.calibrate(result, [inputs])
    before = result.conv1.bn.running_var.clone()
    optimizer = torch.optim.SGD(result.train().parameters(), lr=0.01, momentum=0.9)
    for _ in range(3):
        optimizer.zero_grad()
        F.cross_entropy(result(*inputs), torch.tensor([1, 3])).backward()
        optimizer.step()
    assert not torch.equal(result.conv1.bn.running_var, before)
    detent.deploy(result.eval(), tmp_path)
    exact = detent.bit_exact(result)(*inputs)
    # A sum within the rounding of a float32 of a tie may fall on either code, here of 8 bits.
    assert (exact - run(result, inputs)).abs().max() <= 0.02 * exact.abs().max()


# --- the model that was given ------------------------------------------------------------------------------


@pytest.mark.few(13)
@every_model
def test_prepare_leaves_the_model_as_it_was(name):
    model, inputs = made(name)
    model.train()
    before = facts(model)
    result = detent.prepare(model, inputs, backend=EIGHT, recipe="lsq")
    detent.calibrate(result, [inputs])
    assert facts(model) == before
    shared = {id(p) for p in model.parameters()} & {id(p) for p in result.parameters()}
    assert shared == set()


def test_in_place_works_on_the_model_itself():
    model, inputs = made("residual_cnn")
    weight = model.fc.weight
    result = detent.prepare(model, inputs, backend="onnxruntime", inplace=True)
    assert result.fc.parametrizations.weight.original is weight


@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
def test_the_training_flag_is_the_models(training):
    model, inputs = made("residual_cnn")
    result = detent.prepare(model.train(training), inputs, backend="onnxruntime")
    assert {module.training for module in result.modules()} == {training}
    detent.calibrate(result, [inputs])
    assert {module.training for module in result.modules()} == {training}


def test_the_result_says_what_was_done():
    result, _, _ = prepared("residual_cnn", backend="onnxruntime")
    assert result.backend is BACKENDS["onnxruntime"]
    assert result.recipe == PTQ
    assert (result.plan.backend, result.plan.recipe) == ("onnxruntime", "ptq")
    names = {entry.tensor for entry in result.plan.quantized if not entry.shares and entry.quantizer != "derived"}
    assert {quantizer.name for quantizer in quantizers_of(result)} == names


@pytest.mark.few(13)
@every_model
def test_every_tensor_the_plan_quantizes_lies_on_its_grid(name):
    result, _, inputs = prepared(name)
    seen = {}

    def remember(quantizer, _, output):
        seen[quantizer] = output.detach().clone()

    for quantizer in quantizers_of(result):
        quantizer.register_forward_hook(remember)
    run(result, inputs)
    assert set(seen) == set(quantizers_of(result))
    for quantizer, values in seen.items():
        grid = quantizer.scheme.grid
        codes = quantizer.codes(values)
        assert codes.min() >= grid.qmin
        assert codes.max() <= grid.qmax
        # On an 8-bit grid of one scale there are 256 values.
        if quantizer.scale_shape in ((), (1,)):
            assert values.unique().numel() <= 256


def test_a_users_subclass_of_conv2d_has_its_weight_quantized():
    class Own(nn.Conv2d):
        pass

    net = nn.Sequential(Own(3, 4, 1), nn.ReLU())
    result = detent.prepare(net, (torch.randn(2, 3, 4, 4),), backend="onnxruntime")
    assert result.plan["0.weight"].role == "weight"
    assert "0.weight" in {quantizer.name for quantizer in quantizers_of(result)}


def test_what_is_not_known_is_in_the_plan():
    net = Net(lambda n, x: torch.special.bessel_j0(n.conv(x)), conv=nn.Conv2d(3, 4, 1))
    result = detent.prepare(net, (torch.randn(2, 3, 4, 4),), backend="onnxruntime")
    float_ones = {entry.tensor: entry.reason for entry in result.plan.kept_float}
    assert "not an operation Detent knows" in float_ones["special_bessel_j0"]


def test_an_island_is_in_the_plan():
    result, _, _ = prepared("control_flow")
    assert any("gate" in note and "numbers in a tensor" in note for note in result.plan.notes)


# --- an ordinary module ------------------------------------------------------------------------------------


@pytest.mark.pairwise(strength=1)
@pytest.mark.parametrize("strategy", [0, 4])
@pytest.mark.parametrize("name", ["residual_cnn", "control_flow", "reused_module"])
def test_a_deep_copy_is_independent(name, strategy):
    recipe = recipe_with(
        weight={"quantizer": "lsq"}, activation={"quantizer": "lsq"}, batch_norm={"strategy": strategy}
    )
    result, _, inputs = prepared(name, recipe=recipe)
    expected = run(result, inputs)
    twin = copy.deepcopy(result)
    assert_close(run(twin, inputs), expected, 0)
    with torch.no_grad():
        for parameter in twin.parameters():
            parameter.mul_(1.7)
    assert_close(run(result, inputs), expected, 0)
    assert not torch.equal(run(twin, inputs), expected)
    assert twin.plan == result.plan
    # The bias of the copy is derived from the scales of the copy.
    detent.calibrate(twin, [inputs])
    assert_close(run(result, inputs), expected, 0)


def test_the_derived_bias_of_a_copy_follows_the_copys_scales():
    result, _, _ = prepared("reused_module", recipe="lsq")
    twin = copy.deepcopy(result)
    with torch.no_grad():
        for quantizer in quantizers_of(twin):
            for parameter in quantizer.parameters():
                parameter.mul_(64)
    scales = {quantizer.name: quantizer.qparams().scale for quantizer in quantizers_of(twin)}
    scale = scales["fc.weight"] * next(scales[name] for name in scales if name.startswith("mean"))
    bias = twin.fc.parametrizations.bias.original.detach()
    assert_close(twin.fc.bias.detach(), torch.round(bias / scale) * scale, 1e-6)


def test_two_training_steps_change_weights_and_scales():
    result, _, inputs = prepared("residual_cnn", recipe="lsq")
    result.train()
    before = {name: p.detach().clone() for name, p in result.named_parameters()}
    optimizer = torch.optim.SGD(result.parameters(), lr=0.05)
    labels = torch.tensor([1, 3])
    for _ in range(2):
        optimizer.zero_grad()
        loss = F.cross_entropy(result(*inputs), labels)
        assert loss.isfinite()
        loss.backward()
        optimizer.step()
    same = [name for name, p in result.named_parameters() if torch.equal(p, before[name])]
    assert same == []
    assert any("scale" in name for name in before)
    assert all(p.isfinite().all() for p in result.parameters())
    assert run(result.eval(), inputs).isfinite().all()


def test_training_lowers_the_loss():
    result, _, inputs = prepared("residual_cnn", recipe="lsq")
    result.train()
    optimizer = torch.optim.Adam(result.parameters(), lr=0.01)
    labels, losses = torch.tensor([1, 3]), []
    for _ in range(15):
        optimizer.zero_grad()
        loss = F.cross_entropy(result(*inputs), labels)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.5 * losses[0]


@pytest.mark.skipif(
    not any(shutil.which(compiler) for compiler in (os.environ.get("CXX", "c++"), "g++", "clang++")),
    reason="torch.compile needs a C++ compiler",
)
@pytest.mark.filterwarnings("ignore")  # those of the compiler itself
@pytest.mark.parametrize("compiler", ["aot_eager", pytest.param("inductor", marks=pytest.mark.full)])
def test_a_compiled_model_equals_the_eager_one(compiler):
    result, _, inputs = prepared("linear_bn", recipe="lsq")
    compiled = torch.compile(result, backend=compiler)
    expected = run(result, inputs)
    step = float(expected.max() - expected.min()) / 255
    # The compiler reorders float32 sums: a value next to a rounding point may move by a step, in two layers.
    assert (run(compiled, inputs) - expected).abs().max() <= 2 * step


def test_moving_to_another_dtype_moves_the_scales():
    result, _, (x,) = prepared("linear_bn", recipe="lsq")
    assert run(result.double(), (x.double(),)).dtype is torch.float64


def test_forward_modes_share_weights_and_quantizers():
    model, (x,) = made("several_modes")
    modes = {"tensor": {"mode": "tensor"}, "predict": {"mode": "predict"}}
    result = detent.prepare(model, (x,), backend="onnxruntime", modes=modes)
    detent.calibrate(result, [{"x": x, "mode": mode} for mode in modes])
    names = [quantizer.name for quantizer in quantizers_of(result)]
    assert len(names) == len(set(names))
    with torch.no_grad():
        logits, probabilities = result(x, mode="tensor"), result(x, mode="predict")
    # The softmax has a grid of its own, 1/255 a step.
    assert (torch.softmax(logits, 1) - probabilities).abs().max() < 1 / 128


def test_stubs_bound_what_is_quantized():
    net = nn.Sequential(
        nn.Conv2d(3, 4, 1),
        detent.QuantStub(),
        nn.Conv2d(4, 4, 1),
        detent.DeQuantStub(),
        nn.Conv2d(4, 4, 1),
    )
    x = torch.randn(2, 3, 5, 5)
    result = detent.prepare(net, (x,), backend="onnxruntime")
    assert [entry.tensor for entry in result.plan.quantized if entry.role == "weight"] == ["2.weight"]
    detent.calibrate(result, [x])
    assert run(result, (x,)).isfinite().all()


# --- calibrating -------------------------------------------------------------------------------------------


def test_forward_before_calibration_names_a_tensor():
    result, _, inputs = prepared("residual_cnn", calibrated=False)
    names = {quantizer.name for quantizer in quantizers_of(result)}
    with pytest.raises(NotCalibratedError) as refusal:
        run(result, inputs)
    assert any(f"'{name}'" in refusal.value.asked for name in names)


def scales(model):
    return {quantizer.name: quantizer.qparams().scale.tolist() for quantizer in quantizers_of(model)}


@pytest.mark.parametrize(
    "batch_of",
    [
        pytest.param(lambda x: x, id="tensor"),
        pytest.param(lambda x: (x,), id="tuple"),
        pytest.param(lambda x: [x], id="list"),
        pytest.param(lambda x: (x, torch.tensor([0, 1])), id="with-label"),
        pytest.param(lambda x: (x, torch.tensor([0, 1]), ["a.png", "b.png"]), id="with-label-and-names"),
        pytest.param(lambda x: {"x": x}, id="dict"),
    ],
)
def test_batches_come_in_every_usual_form(batch_of):
    plain, _, (x,) = prepared("residual_cnn")
    result, _, _ = prepared("residual_cnn", calibrated=False)
    detent.calibrate(result, [batch_of(x)])
    assert scales(result) == scales(plain)


def test_a_dict_that_is_the_input_itself_comes_in_a_tuple():
    result, model, inputs = prepared("dict_io")
    ours, theirs = run(result, inputs), run(model, inputs)
    assert list(ours) == list(theirs)
    assert all(quantizer.calibrated for quantizer in quantizers_of(result))


def test_labels_are_ignored_by_a_model_that_is_an_island_too():
    class Branch(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = nn.Conv2d(3, 4, 1)

        def forward(self, x):
            return self.conv(x) if x.sum() < 1e9 else x

    x = torch.randn(2, 3, 4, 4)
    result = detent.prepare(Branch(), (x,), backend="onnxruntime")
    detent.calibrate(result, [(x, torch.tensor([0, 1]))])
    assert all(quantizer.calibrated for quantizer in quantizers_of(result))


@pytest.mark.parametrize("limit", [1, 2, None])
def test_the_recipe_limits_the_batches(limit):
    recipe = recipe_with(calibration={"batches": limit})
    result, _, (x,) = prepared("residual_cnn", recipe=recipe, calibrated=False)
    taken = []

    def batches():
        for gain in (1.0, 2.0, 4.0):
            taken.append(gain)
            yield gain * x

    detent.calibrate(result, batches())
    used = {1: 1.0, 2: 2.0, None: 4.0}[limit]
    assert scales(result)["x"] == pytest.approx(used * float(x.max() - x.min()) / 255, rel=1e-5)


def test_no_batch_past_the_limit_is_taken_from_the_loader():
    result, _, (x,) = prepared("residual_cnn", recipe=recipe_with(calibration={"batches": 1}), calibrated=False)
    loader = iter([x, 2 * x, 4 * x])
    detent.calibrate(result, loader)
    assert len(list(loader)) == 2


def test_a_second_pass_over_an_iterator_is_refused_before_anything_runs():
    recipe = recipe_with(calibration={"inputs": "quantized"})
    result, _, (x,) = prepared("residual_cnn", recipe=recipe, calibrated=False)
    with pytest.raises(RecipeError, match="twice"):
        detent.calibrate(result, iter([x]))
    assert not any(quantizer.calibrated for quantizer in quantizers_of(result))


def test_calibrating_does_not_touch_batch_norm_statistics_or_gradients():
    recipe = recipe_with(batch_norm={"strategy": 4})
    result, _, inputs = prepared("residual_cnn", recipe=recipe, calibrated=False)
    result.train()
    before = result.conv1.bn.running_mean.clone()
    detent.calibrate(result, [inputs])
    assert torch.equal(result.conv1.bn.running_mean, before)
    assert all(p.grad is None for p in result.parameters())
    assert result.training


# --- refusals ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("glob", ["fc", "conv*", "[lr]*t"])
def test_an_excluded_layer_stays_float(glob):
    result, model, _ = prepared("residual_cnn", recipe=recipe_with(exclude=[glob]))
    out = {"fc": {"fc"}, "conv*": {"conv1", "conv2", "conv3"}, "[lr]*t": {"left", "right"}}[glob]
    weights = {entry.tensor for entry in result.plan.quantized if entry.role == "weight"}
    layers = {name for name, module in model.named_modules() if isinstance(module, (nn.Conv2d, nn.Linear))}
    assert weights == {f"{name}.weight" for name in layers - out}
    for name in out:
        assert "exclude" in result.plan[f"{name}.weight"].reason


@pytest.mark.parametrize(
    "given",
    [
        pytest.param({"exclude": ["haed"]}, id="exclude"),
        pytest.param({"rules": [{"match": {"name": "haed"}, "weight": {"bits": 8}}]}, id="rule-by-name"),
        pytest.param({"rules": [{"match": {"kind": "lstm"}, "weight": {"bits": 8}}]}, id="rule-by-kind"),
    ],
)
def test_a_rule_that_matches_nothing_is_refused(given):
    model, inputs = made("residual_cnn")
    before = facts(model)
    with pytest.raises(RecipeError, match="matches nothing"):
        detent.prepare(model, inputs, backend="onnxruntime", recipe=recipe_with(**given))
    assert facts(model) == before


def test_excluding_everything_is_refused():
    model, inputs = made("residual_cnn")
    before = facts(model)
    with pytest.raises(RecipeError, match="nothing in it would be quantized"):
        detent.prepare(model, inputs, backend="onnxruntime", recipe=recipe_with(exclude=["*"]))
    assert facts(model) == before


@pytest.mark.parametrize(
    "forward",
    [
        pytest.param(lambda _, x: torch.special.bessel_j0(x), id="unknown-operation"),
        pytest.param(lambda _, x: x.exp(), id="operation-without-a-rule"),
        pytest.param(lambda _, x: torch.relu(x).reshape(-1), id="activations-and-shapes"),
        pytest.param(lambda _, x: x, id="no-operation"),
    ],
)
def test_a_model_with_nothing_to_quantize_is_refused(forward):
    with pytest.raises(RecipeError, match="nothing in it would be quantized"):
        detent.prepare(Net(forward), (torch.randn(2, 3),), backend="onnxruntime")


# --- what comes along --------------------------------------------------------------------------------------


class Predicting(nn.Module):
    classes = 3

    def __init__(self):
        super().__init__()
        self.conv, self.head, self.names = nn.Conv2d(2, 4, 1), nn.Linear(4, 3), ["a", "b", "c"]

    def forward(self, x):
        return self.head(self.conv(x).mean((2, 3)))

    def predict(self, x):
        return [self.names[index] for index in self(x).argmax(1).tolist()]


def test_attributes_come_along_and_methods_are_called_through_their_class():
    model, x = Predicting(), torch.randn(5, 2, 4, 4)
    result = detent.prepare(model, (x,), backend=EIGHT)
    detent.calibrate(result, [x])
    assert result.names == ["a", "b", "c"]
    assert not hasattr(result, "predict")
    with torch.no_grad():
        assert Predicting.predict(result, x) == [result.names[index] for index in result(x).argmax(1).tolist()]


def test_hooks_of_modules_come_along_and_those_of_the_model_do_not():
    model, x, called = Predicting(), torch.randn(5, 2, 4, 4), []
    model.conv.register_forward_hook(lambda *_: called.append("conv"))
    model.register_forward_hook(lambda *_: called.append("model"))
    result = detent.prepare(model, (x,), backend=EIGHT)
    detent.calibrate(result, [x])
    called.clear()
    result(x)
    assert called == ["conv"]
    result.register_forward_hook(lambda *_: called.append("prepared"))
    result(x)
    assert called == ["conv", "conv", "prepared"]


# --- targets that have no integers for a network -----------------------------------------------------------

FLOAT_THERE = [("lstm_tagger", "tvm"), ("unet", "academic_nlp"), ("conv_transpose_bn", "ncnn")]


def float_model(name, backend, **options):
    model, inputs = made(name)
    with pytest.warns(FloatModelWarning, match=f"{backend} runs nothing in this model on integers"):
        return detent.prepare(model, inputs, backend=backend, **options), model, inputs


@pytest.mark.parametrize(("name", "backend"), FLOAT_THERE)
def test_a_network_the_target_does_not_quantize_stays_float_and_the_plan_says_why(name, backend):
    result, model, inputs = float_model(name, backend)
    assert not quantizers_of(result)
    assert all(entry.reason for entry in result.plan)
    assert f"nothing is quantized: {backend} runs all of this network in float" in str(result.plan)
    detent.calibrate(result, [inputs])
    assert_close(run(result, inputs), run(model, inputs), 1e-5)  # batch norms were merged


@pytest.mark.parametrize(("name", "backend"), FLOAT_THERE)
def test_a_float_plan_trains_and_its_state_comes_back(name, backend):
    result, model, inputs = float_model(name, backend, recipe="lsq")
    optimizer = torch.optim.SGD(result.train().parameters(), lr=1e-2)
    before = {name: tensor.clone() for name, tensor in result.state_dict().items()}
    sum(t.square().mean() for t in tensors(result(*inputs))).backward()
    optimizer.step()
    assert any(not torch.equal(tensor, before[name]) for name, tensor in result.state_dict().items())
    result.load_state_dict(before)
    assert all(torch.equal(tensor, before[name]) for name, tensor in result.state_dict().items())
    result.load_state_dict(model.state_dict())
    assert_close(run(result.eval(), inputs), run(model, inputs), 1e-5)
    assert set(detent.float_state_dict(result)) == set(model.state_dict())


def test_in_place_there_is_one_warning():
    model, inputs = made("conv_transpose_bn")
    with pytest.warns(FloatModelWarning) as found:
        detent.prepare(model, inputs, backend="ncnn", inplace=True)
    assert [Path(warning.filename).name for warning in found] == ["test_preparing.py"]


def test_excluding_all_that_the_target_would_take_is_refused():
    """`linear` is all that the target has a rule for here, and the recipe leaves it out."""
    model = nn.Sequential(nn.ConvTranspose2d(2, 2, 2), nn.Flatten(), nn.Linear(50, 3))
    with pytest.raises(RecipeError, match="exclude less"):
        detent.prepare(model, (torch.randn(1, 2, 4, 4),), backend="ncnn", recipe=recipe_with(exclude=["2"]))


def test_stubs_around_nothing_are_refused():
    class Stubbed(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv, self.quant, self.dequant = nn.Conv2d(2, 2, 1), detent.QuantStub(), detent.DeQuantStub()

        def forward(self, x):
            return self.dequant(self.quant(self.conv(x)))

    with pytest.raises(RecipeError, match="outside of the stubs"):
        detent.prepare(Stubbed(), (torch.randn(1, 2, 4, 4),), backend="onnxruntime")


# --- names -------------------------------------------------------------------------------------------------


def test_an_unknown_backend_is_refused_with_the_nearest_name():
    model, inputs = made("residual_cnn")
    with pytest.raises(UnknownNameError, match="onnxruntime"):
        detent.prepare(model, inputs, backend="onxruntime")


def test_an_unknown_recipe_is_refused_with_the_nearest_name():
    model, inputs = made("residual_cnn")
    with pytest.raises(UnknownNameError, match="'lsq'"):
        detent.prepare(model, inputs, backend="onnxruntime", recipe="lsqq")


@pytest.mark.parametrize(
    "given",
    [
        pytest.param({"weight": {"bits": 3}}, id="bits"),
        pytest.param({"activation": {"granularity": "per_channel"}}, id="granularity"),
        pytest.param({"weight": {"rounding": "floor"}}, id="rounding"),
        pytest.param({"weight": {"bits": 3}, "batch_norm": {"strategy": 4}}, id="bits-with-folding"),
    ],
)
def test_a_scheme_the_backend_does_not_have_is_refused_and_the_model_left_as_it_was(given):
    model, inputs = made("residual_cnn")
    before, expected = facts(model), run(model, inputs)
    with pytest.raises(SchemeError) as refusal:
        detent.prepare(model, inputs, backend=EIGHT, recipe=recipe_with(**given))
    assert "int8" in str(refusal.value)
    assert facts(model) == before
    assert_close(run(model, inputs), expected, 0)


@pytest.mark.parametrize(
    "given", [torch.randn(1, 3, 16, 16), {"x": torch.randn(1, 3, 16, 16)}, None], ids=["tensor", "dict", "nothing"]
)
def test_example_inputs_that_are_no_tuple_are_refused(given):
    """The rows of a tensor would be taken for arguments: one of batch 1 would even fit, without its batch."""
    model, _ = made("residual_cnn")
    with pytest.raises(CaptureError, match=r"\(x,\)"):
        detent.prepare(model, given, backend="onnxruntime")


def test_what_is_no_module_is_refused():
    with pytest.raises(CaptureError, match=r"not an nn\.Module"):
        detent.prepare("model.onnx", (torch.randn(1, 3),), backend="onnxruntime")


def test_wrong_example_inputs_are_refused():
    model, _ = made("residual_cnn")
    before = facts(model)
    with pytest.raises(CaptureError, match="5, 16, 16"):
        detent.prepare(model, (torch.randn(2, 5, 16, 16),), backend="onnxruntime")
    assert facts(model) == before


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_a_model_that_is_not_float32_is_refused_with_what_to_do(dtype):
    model, x = (
        nn.Sequential(nn.Conv2d(3, 4, 1), nn.ReLU(), nn.Conv2d(4, 2, 1)).to(dtype).eval(),
        torch.randn(2, 3, 4, 4),
    )
    name = str(dtype).removeprefix("torch.")
    with pytest.raises(CaptureError, match=f"'0.weight' is {name}.*(\n.*)*model.float\\(\\)"):
        detent.prepare(model, (x.to(dtype),), backend="onnxruntime")
    prepared = detent.prepare(model.float(), (x,), backend="onnxruntime")
    detent.calibrate(prepared, [(x,)])
    with torch.autocast("cpu", torch.bfloat16):
        prepared.train()(x).sum().backward()
    assert all(held.dtype is torch.float32 for held in prepared.parameters())


@pytest.mark.parametrize("dtype", [torch.float16, torch.float64])
def test_inputs_may_be_of_another_precision_where_the_model_turns_them(dtype, tmp_path):
    class Turning(nn.Sequential):
        def forward(self, x):
            return super().forward(x.float())

    x = torch.randn(2, 3, 4, 4).to(dtype)
    prepared = detent.prepare(Turning(nn.Conv2d(3, 4, 1), nn.ReLU(), nn.Conv2d(4, 2, 1)), (x,), backend="onnxruntime")
    detent.calibrate(prepared, [(x,)])
    assert detent.deploy(prepared, tmp_path / "out").verify([(x,)], latency=False).holds


@pytest.mark.parametrize(
    ("batches", "words"),
    [
        (torch.zeros(4, 3, 4, 4), "calibrate with a Tensor"),
        ({"x": torch.zeros(4, 3, 4, 4)}, "calibrate with a dict"),
        (None, "calibrate with a NoneType"),
        ([torch.zeros(4, 3, 4, 4).numpy()], "numpy arrays"),
        ([(torch.zeros(4, 3, 4, 4).numpy(),)], "numpy arrays"),
    ],
    ids=["a-tensor", "a-dict", "nothing", "an-array", "a-tuple-of-arrays"],
)
def test_what_is_no_batches_is_refused(batches, words):
    """A tensor would be gone through sample by sample, which convolutions take without saying so."""
    result = detent.prepare(nn.Sequential(nn.Conv2d(3, 4, 1)), (torch.zeros(1, 3, 4, 4),), backend="openvino")
    with pytest.raises(DataError, match=words):
        detent.calibrate(result, batches)
    assert not any(quantizer.calibrated for quantizer in quantizers_of(result))


def test_a_float_model_is_not_calibrated():
    with pytest.raises(DataError, match="it was not prepared"):
        detent.calibrate(nn.Conv2d(3, 4, 1), [torch.zeros(1, 3, 4, 4)])

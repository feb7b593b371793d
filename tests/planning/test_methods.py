"""How a tensor is quantized: what a recipe asks for, completed from what the backend has, or refused."""

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from detent.calibrating import calibrate
from detent.errors import SchemeError, UnknownNameError
from detent.numerics import IntGrid, PerChannel, PerGroup, PerTensor, Rounding, Scheme
from detent.planning import Backend, SupportedSchemes, quantize_inputs, quantize_io
from detent.preparing import prepare
from detent.recipes import Recipe
from detent.targets import BACKENDS
from tests.planning.nets import Net, image, planned


def net():
    return Net(lambda n, x: n.fc(F.relu(n.conv(x)).mean((2, 3))), conv=nn.Conv2d(4, 4, 1), fc=nn.Linear(4, 2))


def schemes(backend, **said):
    """The schemes of a small network, by tensor, as text."""
    return {entry.tensor: str(entry.scheme) for entry in planned(net(), backend=backend, **said).quantized}


# ---- asked for, and there ----


@pytest.mark.parametrize(
    ("backend", "request_", "tensor", "scheme"),
    [
        ("qnn", {"activation": {"bits": 16}}, "x", "uint16 affine per-tensor half_up"),
        ("onnxruntime", {"weight": {"bits": 7}}, "conv.weight", "int7 narrow symmetric per-channel(0)"),
        ("onnxruntime", {"weight": {"granularity": "per_tensor"}}, "conv.weight", "int8 narrow symmetric per-tensor"),
        ("onnxruntime", {"activation": {"symmetric": True}}, "x", "int8 symmetric per-tensor"),
        ("onnxruntime", {"activation": {"symmetric": True}}, "relu", "uint8 symmetric per-tensor"),
        ("litert", {"activation": {"symmetric": True}}, "relu", "int8 symmetric per-tensor"),
        ("openvino", {"activation": {"symmetric": False}}, "relu", "int8 affine per-tensor"),
        ("openvino", {"activation": {"signed": "auto"}}, "relu", "uint8 symmetric per-tensor"),
        ("snpe", {"weight": {"granularity": "per_channel"}}, "conv.weight", "int8 symmetric per-channel(0)"),
        ("snpe", {"weight": {"symmetric": True}}, "conv.weight", "int8 symmetric per-channel(0)"),
        ("acl", {"weight": {"symmetric": False}}, "conv.weight", "int8 affine per-tensor"),
        (
            "esp_dl",
            {"weight": {"rounding": "half_up"}},
            "fc.weight",
            "int8 symmetric per-channel(0) power-of-two half_up",
        ),
        ("esp_dl", {"bias": {"bits": 20}}, "conv.bias", "int20 symmetric per-channel(0) power-of-two"),
        ("academic", {"weight": {"granularity": {"per_group": 2}}}, "conv.weight", "int8 symmetric per-group(1, 2)"),
        ("academic", {"activation": {"narrow": True}}, "x", "int8 narrow symmetric per-tensor"),
        ("academic", {"weight": {"grid": "e2m1"}}, "fc.weight", "e2m1 symmetric per-tensor"),
        ("academic", {"activation": {"grid": "e4m3"}}, "x", "e4m3 symmetric per-tensor"),
        (
            "academic",
            {"weight": {"grid": "e5m2", "scale": "e8m0", "granularity": {"per_group": 2}}},
            "fc.weight",
            "e5m2 symmetric per-group(1, 2) e8m0-scales",
        ),
    ],
)
def test_what_the_backend_has_is_had(backend, request_, tensor, scheme):
    assert schemes(backend, **request_)[tensor] == scheme


def test_depthwise_weights_are_narrower_where_their_kernel_saturates_unless_a_recipe_asks():
    model = Net(
        lambda n, x: n.fc(n.dense(n.depthwise(x)).mean((2, 3))),
        depthwise=nn.Conv2d(4, 8, 3, groups=4),
        dense=nn.Conv2d(8, 4, 1, groups=2),
        fc=nn.Linear(4, 2),
    )
    weights = ("depthwise.weight", "dense.weight", "fc.weight")
    for said, bits in (({}, [7, 8, 8]), ({"weight": {"bits": 8}}, [8, 8, 8])):
        found = planned(model, backend="torch_x86", **said)
        assert [found[weight].scheme.grid.bits for weight in weights] == bits
    assert planned(model, backend="onnxruntime")["depthwise.weight"].scheme.grid.bits == 8


# ---- asked for, and not there ----


@pytest.mark.parametrize(
    ("backend", "request_", "asked", "found"),
    [
        ("onnxruntime", {"weight": {"bits": 4}}, "'conv.weight' as int4", "it has 8 or 7 bits"),
        ("tensorrt", {"activation": {"symmetric": False}}, "'x' as int8 affine", "it has symmetric schemes"),
        ("tensorrt", {"activation": {"signed": False}}, "'x' as uint8", "it has signed codes"),
        ("snpe", {"activation": {"symmetric": True}}, "'x' as int8 symmetric", "it has unsigned codes, affine schemes"),
        ("vitis", {"weight": {"granularity": "per_channel"}}, "per-channel(0)", "it has per-tensor scales"),
        ("vitis", {"weight": {"scale": "float"}}, "'conv.weight'", "it has power-of-two scales"),
        ("vitis", {"activation": {"rounding": "half_even"}}, "'x' as", "it has rounding half_away"),
        ("vitis", {"weight": {"narrow": True}}, "narrow", "it has the full range"),
        ("onnxruntime", {"activation": {"narrow": True, "signed": True}}, "narrow", "it has the full range"),
        ("openvino", {"activation": {"narrow": True}}, "narrow", "it has the full range"),
        ("ncnn", {"weight": {"narrow": False}}, "'conv.weight'", "it has the narrow range"),
        ("tflite_micro", {"weight": {"granularity": "per_channel"}}, "'fc.weight'", "it has per-tensor scales"),
        ("ncnn", {"weight": {"grid": "log"}}, "'conv.weight' on a grid of kind 'log'", "it has grids IntGrid"),
        ("openvino", {"weight": {"grid": "nf4"}}, "'conv.weight' on a grid of kind 'nf4'", "it has grids IntGrid"),
        ("openvino", {"activation": {"scale": "e4m3"}}, "e4m3-scales", "it has float or power-of-two scales"),
        ("snpe", {"weight": {"bits": 4}}, "'conv.weight' as uint4", "it has 8 bits"),
        (
            "nnie",
            {"activation": {"quantizer": "lsq"}},
            "'x' on 'nnie': 'lsq' with log8",
            "needs a grid of kind IntGrid",
        ),
        ("ppl_w8a16", {"activation": {"observer": "kl"}}, "'x' on 'ppl_w8a16': 'kl'", "it needs at most 8 bits"),
    ],
)
def test_what_the_backend_has_not_is_refused_with_what_it_has(backend, request_, asked, found):
    with pytest.raises(SchemeError) as refusal:
        schemes(backend, **request_)
    assert asked in refusal.value.asked
    assert repr(backend) in refusal.value.asked
    assert found in refusal.value.found
    assert refusal.value.to_do


def test_what_two_alternatives_lack_is_said_once():
    with pytest.raises(SchemeError) as refusal:
        schemes("snpe", weight={"bits": 4})
    assert refusal.value.found == "it has 8 bits"


def test_limits_name_each_thing_that_is_off():
    offer = SupportedSchemes(bits=(8, 16), granularities=(PerChannel, PerTensor))
    scheme = Scheme(IntGrid(4, signed=False), symmetric=False, granularity=PerGroup(1, 32), rounding=Rounding.FLOOR)
    assert offer.limits(scheme) == [
        "8 or 16 bits",
        "signed codes",
        "symmetric schemes",
        "per-channel or per-tensor scales",
        "rounding half_even",
    ]
    assert offer.limits(Scheme(IntGrid(16), scale="power_of_two")) == []


# ---- methods and observers ----


def entries(backend, **said):
    return {entry.tensor: entry for entry in planned(net(), backend=backend, **said).quantized}


def test_a_method_brings_its_own_observer_where_that_suits_the_scheme():
    assert entries("onnxruntime", activation={"quantizer": "moving_range"})["x"].observer == "moving_average"
    assert entries("vitis", weight={"quantizer": "tqt"})["conv.weight"].observer == "pow2_sse"
    assert entries("onnxruntime", activation={"quantizer": "lsq", "observer": "mse"})["x"].observer == "mse"


def test_a_trained_range_starts_where_the_backend_measures_it():
    assert entries("onnxruntime", activation={"quantizer": "lsq"})["x"].observer == "minmax"
    assert entries("academic", weight={"quantizer": "lsq"})["conv.weight"].observer == "minmax"


def test_on_powers_of_two_the_backends_own_observer_is_the_start():
    found = entries("vitis", weight={"quantizer": "lsq"}, activation={"quantizer": "lsq"})
    assert (found["relu"].observer, found["conv.weight"].observer) == ("pow2_mode", "pow2_sse")


def test_where_nothing_is_asked_the_backend_chooses():
    found = entries("vitis")
    assert (found["relu"].observer, found["conv.weight"].observer) == ("pow2_mode", "pow2_sse")
    assert found["x"].observer_options == {"candidates": 1}
    assert found["conv.bias"].observer == "pow2_sse"


def test_on_logarithmic_numbers_what_stays_as_calibrated_is_their_own_method():
    assert entries("nnie", weight={"quantizer": "fixed"})["conv.weight"].quantizer == "log"


def test_options_go_with_their_method():
    said = {
        "quantizer": "dsq",
        "quantizer_options": {"alpha": 0.3},
        "observer": "std",
        "observer_options": {"sigmas": 2.0},
    }
    found = entries("onnxruntime", activation=said)["x"]
    assert (found.quantizer_options, found.observer_options) == ({"alpha": 0.3}, {"sigmas": 2.0})


# ---- biases ----


def test_a_derived_bias_has_the_granularity_of_its_weight():
    assert schemes("litert")["conv.bias"] == "int32 symmetric per-channel(0)"
    assert schemes("litert", weight={"granularity": "per_tensor"})["conv.bias"] == "int32 symmetric per-tensor"
    assert schemes("tflite_micro")["fc.bias"] == "int32 symmetric per-tensor"


def test_groups_leave_a_bias_without_a_scale():
    backend = Backend(
        name="groups",
        about="",
        weight=SupportedSchemes(granularities=(PerGroup,)),
        activation=SupportedSchemes(),
        bias="int32",
        rules=quantize_inputs("conv", "linear"),
    )
    found = planned(net(), backend=backend, weight={"granularity": {"per_group": 2}})
    assert found["conv.bias"].reason == "the groups of its weight have no common scale"


@pytest.mark.parametrize("strategy", [1, 2, 3, 4])
@pytest.mark.parametrize("backend", ["onnxruntime", "vitis", "academic"])
def test_a_batch_norm_that_is_folded_in_each_step_is_planned_and_runs(backend, strategy):
    model = Net(
        lambda n, x: n.fc(F.relu(n.bn(n.conv(x))).mean((2, 3))),
        conv=nn.Conv2d(4, 4, 1, bias=False),
        bn=nn.BatchNorm2d(4),
        fc=nn.Linear(4, 2),
    )
    recipe = Recipe(name="mine", batch_norm={"strategy": strategy})
    prepared = prepare(model, (image(),), backend=backend, recipe=recipe)
    assert prepared.plan["conv.weight"].role == "weight"
    assert prepared.plan["conv.bias"].tensor == "conv.bias"
    calibrate(prepared, [image()])
    assert torch.isfinite(prepared.train()(image())).all()


# ---- ranges that the target fixes ----


@pytest.mark.parametrize(
    ("backend", "function", "scale", "zero_point"),
    [
        ("litert", torch.sigmoid, 1 / 256, -128),
        ("litert", lambda x: torch.softmax(x, 1), 1 / 256, -128),
        ("litert", torch.tanh, 1 / 128, 0),
        ("litert", lambda x: torch.log_softmax(x, 1), 16 / 256, 127),
        ("torch_x86", torch.sigmoid, 1 / 256, 0),
        ("torch_x86", F.hardsigmoid, 1 / 256, 0),
        ("torch_x86", torch.tanh, 1 / 128, 128),
    ],
    ids=["sigmoid", "softmax", "tanh", "log_softmax", "torch-sigmoid", "torch-hardsigmoid", "torch-tanh"],
)
def test_a_kernel_with_a_built_in_scale_has_that_scale(backend, function, scale, zero_point):
    model = Net(lambda n, x: n.conv(function(x)), conv=nn.Conv2d(4, 4, 1)).eval()
    prepared = prepare(model, (image(),), backend=backend, recipe="lsq")
    calibrate(prepared, [image()])
    (entry,) = [entry for entry in prepared.plan.quantized if entry.observer == "fixed"]
    assert entry.quantizer == "fixed"  # also where the recipe trains: there is nothing to learn
    held = prepared.get_submodule("activation_quantizers")[entry.node].qparams()
    assert (held.scale.item(), held.zero_point.item()) == (scale, zero_point)


def test_a_built_in_scale_is_kept_by_what_moves_and_given_up_where_another_tensor_must_have_it():
    moved = Net(lambda n, x: n.conv(F.max_pool2d(torch.sigmoid(x), 2)), conv=nn.Conv2d(4, 4, 1))
    assert planned(moved, backend="litert")["max_pool2d"].observer == "fixed"
    joined = Net(
        lambda n, x: n.conv(torch.cat((torch.sigmoid(x), n.other(x)), 1)),
        conv=nn.Conv2d(8, 4, 1),
        other=nn.Conv2d(4, 4, 1),
    )
    found = planned(joined, backend="litert")
    assert found["sigmoid"].observer == found["cat"].observer == "minmax"


# ---- the network's input ----


def test_the_input_of_the_network_may_be_rounded_otherwise():
    assert schemes("vitis")["x"].endswith("half_away")
    assert schemes("nxp")["x"].endswith("half_down")
    assert schemes("nxp")["relu"].endswith("half_up")


# ---- a backend that cannot be ----


def test_a_misspelt_kind_is_refused_with_the_nearest():
    with pytest.raises(UnknownNameError, match="did you mean 'conv'"):
        Backend(
            name="toy", about="", weight=SupportedSchemes(), activation=SupportedSchemes(), rules=quantize_io("cnov")
        )
    with pytest.raises(UnknownNameError, match="passthrough of backend 'toy'"):
        Backend(
            name="toy",
            about="",
            weight=SupportedSchemes(),
            activation=SupportedSchemes(),
            rules={},
            passthrough=("pool",),
        )


def test_what_has_several_inputs_keeps_a_scale_only_if_they_have_one():
    with pytest.raises(SchemeError, match="put it in common_qparams too"):
        replace(BACKENDS["ncnn"], passthrough=("concat",))

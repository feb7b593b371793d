"""MQBench's API over the core: every backend deploys, phases, the dictionaries, reconstruction."""

from __future__ import annotations

import json
import operator

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from torch import nn

from detent.compat.mqbench import (
    BackendType,
    LogarithmicQuantizer_process,
    convert_deploy,
    disable_all,
    enable_calibration,
    enable_calibration_quantization,
    enable_calibration_woquantization,
    enable_quantization,
    prepare_by_platform,
    ptq_reconstruction,
    remove_fakequantize_and_collect_params,
)
from detent.errors import DeployError, NotCalibratedError, RecipeError, UnknownNameError
from detent.graph import quantizers_of
from tests.compat.mqbench_code import small_net as net


def images(factor: float = 1.0) -> torch.Tensor:
    return factor * torch.randn(4, 3, 8, 8, generator=torch.Generator().manual_seed(4))


def calibrated(backend=BackendType.Tensorrt, custom=None, *, is_qat=False):
    model = prepare_by_platform(net(), backend, custom, is_qat=is_qat).eval()
    enable_calibration(model)
    model(images())
    enable_quantization(model)
    return model


def test_the_logarithmic_nodes_of_nnie_are_collected_and_removed(tmp_path):
    convert_deploy(calibrated(BackendType.NNIE), BackendType.NNIE, output_path=tmp_path, model_name="net")
    by_deploying = json.loads((tmp_path / "net_gfpq_param_dict.json").read_text())
    quantized = onnx.load(tmp_path / "net.onnx").graph
    own = [node.input[0] for node in quantized.node if node.op_type == "NNIEQuantize"]
    assert {"x", "first.0.weight", "first_2", "second_2", "fc.weight"} <= set(own)
    network, collected = LogarithmicQuantizer_process().remove_fakequantize_and_collect_params(
        tmp_path / "net.onnx", "again"
    )
    assert collected == by_deploying
    assert list(collected["nnie"]["gfpq_param_dict"]) == ["first_0", "second_0", "add", "fc"]
    onnx.checker.check_model(network)
    session = onnxruntime.InferenceSession(tmp_path / "again_deploy_model.onnx")
    (given,) = session.run(None, {"x": images().numpy()})
    expected = onnxruntime.InferenceSession(tmp_path / "net_deploy_model.onnx").run(None, {"x": images().numpy()})[0]
    assert np.array_equal(given, expected)


def test_q_and_dq_are_collected_and_removed(tmp_path):
    convert_deploy(calibrated(), BackendType.Tensorrt, output_path=tmp_path, model_name="net")
    network, context = remove_fakequantize_and_collect_params(tmp_path / "net.onnx", "again", backend="tensorrt")
    assert "QuantizeLinear" not in {node.op_type for node in network.graph.node}
    said = json.loads((tmp_path / "net_clip_ranges.json").read_text())["tensorrt"]["blob_range"]
    scales = {name: one["scale"] for name, one in context["tensorrt"].items()}
    assert {name: 127 * scales[name] for name in ("x", "add")} == pytest.approx({n: said[n] for n in ("x", "add")})


def test_phases():
    model = prepare_by_platform(net(), BackendType.Tensorrt, is_qat=False).eval()
    enable_calibration(model)
    observed = model(images())
    enable_quantization(model)
    quantized = model(images())
    disable_all(model)
    plain = model(images())
    enable_quantization(model)
    assert torch.allclose(observed, net()(images()), atol=1e-5)
    assert torch.equal(plain, observed)
    assert not torch.equal(quantized, plain)
    assert torch.equal(model(images()), quantized)


def test_only_the_quantizers_that_are_named_are_calibrated():
    model = calibrated()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    enable_calibration_woquantization(model, quantizer_type="act_fake_quant")
    model(images(factor=3.0))
    enable_quantization(model)
    changed = {name for name, value in model.state_dict().items() if not torch.equal(value, before[name])}
    assert changed
    # Activations that stay float are measured with the others.
    assert all("activation_quantizers" in name or "float_ranges" in name for name in changed)
    with pytest.raises(RecipeError, match="act_fake_quant, weight_fake_quant"):
        enable_calibration_woquantization(model, "activations")


def test_calibrating_with_quantization_sees_what_the_quantized_layers_before_give():
    model = calibrated()
    before = {q: q.qparams().scale.clone() for q in model.prepared.activation_quantizers.values()}
    enable_calibration_quantization(model)
    observed = model(images())
    enable_quantization(model)
    assert not torch.equal(observed, net()(images())), "it ran quantized"
    (first, *others) = before
    assert torch.equal(first.qparams().scale, before[first]), "the network's input is the same"
    assert all(not torch.equal(q.qparams().scale, before[q]) for q in others)


EMA, BOTH_WHOLE = ("minmax", "moving_average"), ("minmax", "minmax")
PRESETS = {
    "Tensorrt": ("lsq", "lsq", *EMA),
    "Tensorrt_NLP": ("lsq", "lsq", *EMA),
    "OPENVINO": ("lsq", "lsq", *EMA),
    "QDQ": ("lsq", "lsq_plus", *EMA),
    "SNPE": ("lsq_plus", "lsq_plus", *EMA),
    "PPLW8A16": ("lsq_plus", "lsq_plus", *EMA),
    "PPLCUDA": ("lsq", "lsq", *BOTH_WHOLE),
    "STPU": ("fixed", "fixed", *EMA),
    "ONNX_QNN": ("lsq_plus", "lsq_plus", *BOTH_WHOLE),
    "Tengine_u8": ("lsq_plus", "lsq_plus", *EMA),
    "Vitis": ("tqt", "tqt", "pow2_sse", "pow2_mode"),
    "NNIE": ("log", "log", *BOTH_WHOLE),
    "Academic": ("lsq", "lsq", *BOTH_WHOLE),
}
"""The table of MQBench's presets: methods and observers of weights and activations."""


@pytest.mark.parametrize("name", PRESETS)
def test_presets_learn_and_calibrate_as_mqbench_does(name):
    plan = calibrated(BackendType[name], is_qat=True).prepared.plan
    weight = plan["second.0.weight"]
    activation = [entry for entry in plan.quantized if entry.role == "activation"][1]
    assert (weight.quantizer, activation.quantizer, weight.observer, activation.observer) == PRESETS[name]


@pytest.mark.parametrize("name", ["Vitis", "Tensorrt"])
def test_a_preset_that_is_calibrated_in_training_mode_deploys(tmp_path, name):
    backend = BackendType[name]
    model = prepare_by_platform(net().train(), backend)
    enable_calibration(model)
    model(images())
    enable_quantization(model)
    model.eval()
    convert_deploy(model, backend, output_path=tmp_path, model_name="net")
    quantized = onnx.load(tmp_path / "net.onnx").graph
    stored = {node.output[0] for node in quantized.node if node.op_type == "DequantizeLinear"}
    layers = [node for node in quantized.node if node.op_type in ("Conv", "Gemm")]
    assert len(layers) == 3
    assert all((node.input[2] in stored) == (name == "Vitis") for node in layers)


def test_a_presets_ranges_are_those_of_its_observers():
    """Not 2 mean|x| / sqrt(127), the start of LSQ's paper."""
    prepared = calibrated(BackendType.Tensorrt, is_qat=True).prepared
    found = {one.name: one for one in quantizers_of(prepared)}
    assert found["x"].qparams().scale.item() == pytest.approx(images().abs().max().item() / 128)


def test_extra_qconfig_dict():
    custom = {
        "extra_qconfig_dict": {
            "w_observer": "MSEObserver",
            "a_observer": "EMAMinMaxObserver",
            "w_fakequantize": "LearnableFakeQuantize",
            "a_fakequantize": "FixedFakeQuantize",
            "w_qscheme": {"bit": 4, "symmetry": True, "per_channel": True, "pot_scale": False, "p": 2.4},
            "a_qscheme": {"bit": 4, "symmetry": False, "per_channel": False, "pot_scale": False},
        }
    }
    plan = calibrated(BackendType.Academic, custom).prepared.plan
    weight = plan["second.0.weight"]
    assert str(weight.scheme) == "int4 symmetric per-channel(0)"
    assert (weight.quantizer, weight.observer, weight.observer_options["norm"]) == ("lsq", "mse", 2.4)
    assert [e.quantizer for e in plan.quantized if e.role == "activation"] == ["fixed"] * 3


def test_extra_quantizer_dict():
    custom = {"extra_quantizer_dict": {"exclude_module_name": ["second"]}}
    kept = {entry.tensor for entry in calibrated(custom=custom).prepared.plan.kept_float}
    assert "second.0.weight" in kept
    assert "first.0.weight" not in kept


@pytest.mark.parametrize(
    ("excluded", "kept"),
    [
        ({"exclude_function_type": [operator.add]}, {"second_2"}),
        ({"exclude_function_type": [torch.nn.functional.linear]}, {"pool", "fc.weight"}),
        ({"exclude_node_name": ["pool"]}, {"add"}),
        ({"exclude_module_name": ["fc"]}, {"pool", "fc.weight"}),
        ({"exclude_module_name": ["second.0"]}, {"second.0.weight"}),
    ],
    ids=["add", "linear", "node", "module", "inner-module"],
)
def test_what_is_excluded_stays_float(excluded, kept):
    usual = {entry.tensor for entry in calibrated().prepared.plan.quantized}
    plan = calibrated(custom={"extra_quantizer_dict": excluded}).prepared.plan
    missing = usual - {entry.tensor for entry in plan.quantized}
    assert kept <= missing
    assert "first.0.weight" not in missing
    assert "x" not in missing, "its other readers are quantized still"


def test_concrete_args_choose_a_branch():
    class Branching(nn.Module):
        def __init__(self):
            super().__init__()
            self.narrow, self.wide = nn.Conv2d(3, 4, 1), nn.Conv2d(3, 4, 3)

        def forward(self, x, is_wide=True):
            return self.wide(x) if is_wide else self.narrow(x)

    for chosen in (False, True):
        model = prepare_by_platform(Branching().eval(), BackendType.Tensorrt, {"concrete_args": {"is_wide": chosen}})
        enable_calibration(model.eval())
        model(images())
        weights = [entry.tensor for entry in model.prepared.plan.quantized if entry.role == "weight"]
        assert weights == ["wide.weight" if chosen else "narrow.weight"]


def test_preserved_attributes_are_bound_to_the_prepared_model():
    model = calibrated(custom={"preserve_attr": {"": ["predict", "classes"]}})
    assert model.prepared.classes == 2
    assert torch.equal(model.prepared.predict(images()), model(images()).argmax(1))


def test_leaf_modules():
    class Whole(nn.Module):
        def forward(self, x):
            return x * 2

    net_ = nn.Sequential(nn.Conv2d(3, 4, 3), Whole(), nn.Conv2d(4, 2, 1)).eval()
    model = prepare_by_platform(net_, BackendType.Tensorrt, {"leaf_module": [Whole]}).eval()
    enable_calibration(model)
    model(images())
    assert any(entry.kind == "Whole" for entry in model.prepared.plan)


@pytest.mark.parametrize(
    ("pattern", "prob", "algorithm"), [("layer", 1.0, "adaround"), ("block", 1.0, "brecq"), ("block", 0.5, "qdrop")]
)
def test_reconstruction(pattern, prob, algorithm):
    activation = "FixedFakeQuantize" if pattern == "layer" else "QDropFakeQuantize"
    custom = {
        "extra_qconfig_dict": {
            "w_observer": "MSEObserver",
            "a_observer": "EMAMSEObserver",
            "w_fakequantize": "AdaRoundFakeQuantize",
            "a_fakequantize": activation,
            "w_qscheme": {"bit": 4, "symmetry": True, "per_channel": True, "pot_scale": False},
            "a_qscheme": {"bit": 8, "symmetry": True, "per_channel": False, "pot_scale": False},
        }
    }
    model = calibrated(BackendType.Academic, custom)
    config = {"pattern": pattern, "prob": prob, "max_count": 20, "scale_lr": 4e-5, "warm_up": 0.2, "b_range": [20, 2]}
    assert ptq_reconstruction(model, [images(), images(0.9)], config) is model
    (report,) = model.prepared.algorithm_notes
    assert report.algorithm == algorithm


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: prepare_by_platform(net(), "tpu"), "BackendType.Academic"),
        (lambda: calibrated(custom={"extra_qconfig": {}}), "extra_qconfig_dict, extra_quantizer_dict"),
        (lambda: calibrated(custom={"extra_qconfig_dict": {"w_observer": "Max"}}), "MinMaxObserver"),
        (lambda: calibrated(custom={"extra_qconfig_dict": {"w_qscheme": {"bits": 8}}}), "bit, symmetry, per_channel"),
        (lambda: ptq_reconstruction(calibrated(), [], {"pattern": "net"}), "'layer', 'block'"),
        (lambda: ptq_reconstruction(calibrated(), [], {"b_range": [10, 2]}), "allowed is [20, 2]"),
    ],
    ids=["backend", "custom", "observer", "scheme", "pattern", "b_range"],
)
def test_mistakes_name_what_is_allowed(call, said):
    with pytest.raises((RecipeError, UnknownNameError)) as error:
        call()
    assert said in error.value.found


def test_deploying_what_was_not_prepared_so_is_refused(tmp_path):
    with pytest.raises(NotCalibratedError, match="have no scale"):
        convert_deploy(prepare_by_platform(net(), BackendType.SNPE), BackendType.SNPE, output_path=tmp_path)
    with pytest.raises(DeployError, match="prepared for 'tensorrt'"):
        convert_deploy(calibrated(), BackendType.SNPE, output_path=tmp_path)
    with pytest.raises(DeployError, match="the network takes x"):
        convert_deploy(calibrated(), BackendType.Tensorrt, {"data": [1, 3, 8, 8]}, output_path=tmp_path)

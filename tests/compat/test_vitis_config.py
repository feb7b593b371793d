"""Vitis configs: what every key does to the plan, and what is refused, with the key and the allowed values."""

from __future__ import annotations

import json
from itertools import product

import pytest
import torch
from torch import nn

from detent.compat.vitis import QatProcessor, VitisConfig
from detent.compat.vitis.statistics import BatchStatistic, FollowingRange
from detent.errors import DeployError, RecipeError
from detent.numerics import IntGrid, PerChannel, QParams, Rounding, Scheme

FLOAT = {"target_device": "CPU"}


def net() -> nn.Module:
    torch.manual_seed(1)
    first = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU6())
    return nn.Sequential(first, nn.Conv2d(4, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(64, 2)).eval()


def images() -> torch.Tensor:
    return torch.randn(2, 3, 6, 6, generator=torch.Generator().manual_seed(2))


def processor(tmp_path, config) -> QatProcessor:
    file = tmp_path / "cfg.json"
    file.write_text(json.dumps(config))
    return QatProcessor(net(), images(), config_file=file)


def plan(tmp_path, config):
    return processor(tmp_path, config).trainable_model().plan


def cpu(**overall):
    return {**FLOAT, "overall_quantize_config": overall}


@pytest.mark.parametrize(
    ("overall", "scheme"),
    [
        ({"bit_width": 4}, "int4 symmetric per-tensor"),
        ({"bit_width": 6, "symmetry": False}, "int6 affine per-tensor"),
        ({"signed": False, "symmetry": False}, "uint8 affine per-tensor"),
        ({"narrow_range": True}, "int8 narrow symmetric per-tensor"),
        ({"per_channel": True, "ch_axis": 0}, "int8 symmetric per-channel(0)"),
        ({"scale_type": "poweroftwo", "method": "maxmin"}, "int8 symmetric per-tensor power-of-two"),
        ({"round_mode": "half_even"}, "int8 symmetric per-tensor"),
        ({"round_mode": "half_up"}, "int8 symmetric per-tensor half_up"),
        ({"round_mode": "half_down"}, "int8 symmetric per-tensor half_toward_zero"),
        ({"round_mode": "floor"}, "int8 symmetric per-tensor floor"),
        ({"round_mode": "std_round"}, "int8 symmetric per-tensor half_away"),
        ({"round_mode": "stochastic_round"}, "int8 symmetric per-tensor stochastic"),
    ],
    ids=lambda value: str(value) if isinstance(value, dict) else "",
)
def test_scheme(overall, scheme, tmp_path):
    assert str(plan(tmp_path, cpu(**overall))["1.weight"].scheme) == scheme


@pytest.mark.pairwise(strength=1)
@pytest.mark.parametrize("moving", [False, True], ids=["plain", "moving"])
@pytest.mark.parametrize(
    ("method", "scale"),
    [
        *product(("maxmin", "percentile", "std", "mse", "entropy"), ("float", "poweroftwo")),
        ("diffs", "poweroftwo"),
    ],
)
def test_every_statistic_trains_and_deploys(method, scale, moving, tmp_path):
    config = cpu(method=method, scale_type=scale, moving_avg=moving)
    qat_processor = processor(tmp_path, config)
    model = qat_processor.trainable_model()
    assert {entry.quantizer for entry in model.plan.quantized} == {"vitis_statistic"}
    model.train()
    model(2 * images()).sum().backward()
    deployed = qat_processor.to_deployable(model, tmp_path / "out")
    model.eval()
    assert torch.equal(deployed(images()), model(images()))
    with torch.no_grad():
        off = (net()(images()) - model(images())).abs().max() / net()(images()).abs().max()
    assert off < 0.25  # power-of-two scales of two layers and clipped tails; noise would be off by 1 and more


def test_a_tensor_says_more_than_overall_and_a_layer_more_than_both(tmp_path):
    config = {
        **cpu(bit_width=8),
        "tensor_quantize_config": {"weights": {"bit_width": 6}, "input": {"bit_width": 7}, "bias": {"bit_width": 16}},
        "layer_quantize_config": [
            {"layer_type": "Conv2d", "layer_name": None, "tensor_quantize_config": {"weights": {"bit_width": 5}}},
            {"layer_name": "1", "overall_quantize_config": {"bit_width": 4}},
        ],
    }
    found = plan(tmp_path, config)
    widths = {entry.tensor: entry.scheme.grid.bits for entry in found.quantized}
    assert widths["0.0.weight"] == 5, "by type"
    assert widths["1.weight"] == 4, "a name beats a type"
    assert widths["4.weight"] == 6, "by tensor"
    assert widths["4.bias"] == 16
    assert widths[found.quantized[0].tensor] == 7, "the network's input"
    assert widths["_0_2"] == 4, "what layer 1 takes in"


def test_methods_of_input_and_activation_may_differ(tmp_path):
    config = {
        **cpu(method="moving_avg_percentile", percentage=99.9),
        "tensor_quantize_config": {"input": {"method": "mse"}},
    }
    entries = plan(tmp_path, config).quantized
    assert entries[0].observer_options["method"] == "mse"
    assert next(e for e in entries if e.tensor == "_0_2").observer_options["percentile"] == 99.9


@pytest.mark.parametrize(
    ("config", "key"),
    [
        ({"quantizable_data_type": ["weights", "bias", "activation"]}, "input"),
        ({"tensor_quantize_config": {"input": {"datatype": "float32"}}}, "input"),
        ({"keep_first_last_layer_accuracy": True}, "0.0.weight"),
    ],
    ids=["quantizable_data_type", "float32", "ends"],
)
def test_what_stays_float(config, key, tmp_path):
    kept = {entry.tensor: entry.kind for entry in plan(tmp_path, {**FLOAT, **config}).kept_float}
    assert key in kept or key in kept.values()
    assert ("4.weight" in kept) == ("keep_first_last_layer_accuracy" in config)
    assert "1.weight" not in kept


def test_flags_reach_the_core(tmp_path):
    flags = {"convert_relu6_to_relu": True, "include_cle": True, "include_bias_corr": True}
    model = processor(tmp_path, flags).trainable_model()
    assert [algorithm.name for algorithm in model.recipe.algorithms] == ["equalize", "bias_correction"]
    assert not any(isinstance(part, nn.ReLU6) for part in model.modules())
    assert len(model.algorithm_notes) == 2


@pytest.mark.parametrize(
    ("config", "key", "allowed"),
    [
        ({"include_cel": True}, "include_cel", "include_cle"),
        ({"target_device": "TPU"}, "target_device = 'TPU'", "DPU, CPU, GPU"),
        ({"include_cle": "yes"}, "include_cle = 'yes'", "true, false"),
        ({"keep_add_layer_accuracy": True}, "keep_add_layer_accuracy = True", "false on a DPU"),
        (cpu(bit_width=1), "overall_quantize_config.bit_width = 1", "2 to 16"),
        (cpu(bit_width="8"), "bit_width = '8'", "2 to 16"),
        (cpu(round_mode="nearest"), "round_mode = 'nearest'", "half_even, half_up, half_down, floor, std_round"),
        (cpu(scale_type="pow2"), "scale_type = 'pow2'", "float, poweroftwo"),
        (cpu(method="kl"), "method = 'kl'", "tqt, lsq, maxmin, percentile"),
        (cpu(percentage=120), "percentage = 120", "up to 100"),
        (cpu(symmetry=1), "symmetry = 1", "true, false"),
        (cpu(calib_statistic_method="mode"), "calib_statistic_method = 'mode'", "modal, max, mean, median"),
        (cpu(bitwidth=8), "overall_quantize_config.bitwidth = 8", "bit_width"),
        (cpu(datatype="int8"), "datatype = 'int8'", "int, float32"),
        (cpu(method="tqt"), "scale_type = 'float'", "'poweroftwo' with method 'tqt'"),
        (cpu(method="lsq", moving_avg=True), "moving_avg", "false with method 'lsq'"),
        (cpu(method="diffs"), "method = 'diffs'", "searches exponents"),
        (cpu(calib_statistic_method="modal"), "calib_statistic_method = 'modal'", "max, mean, median"),
        ({**FLOAT, "tensor_quantize_config": {"weight": {}}}, "weight", "weights, bias, activation, input"),
        ({**FLOAT, "tensor_quantize_config": {"input": {"per_channel": True}}}, "input.per_channel", "false for input"),
        ({"overall_quantize_config": {"bit_width": 4}}, "bit_width = 4", "8 on a DPU"),
        ({"overall_quantize_config": {"round_mode": "std_round"}}, "activation.round_mode", "'half_up' on a DPU"),
        ({"overall_quantize_config": {"narrow_range": True}}, "narrow_range", "False on a DPU"),
        (
            {"layer_quantize_config": [{"overall_quantize_config": {}}]},
            "layer_quantize_config[0]",
            "neither layer_type",
        ),
        ({"layer_quantize_config": {}, "quantizable_data_type": ["all"]}, "quantizable_data_type", "lists of weights"),
        ({"onnx_opset_version": 9}, "onnx_opset_version = 9", "13 to 21"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_wrong_configs_are_refused(config, key, allowed):
    with pytest.raises(RecipeError) as error:
        VitisConfig.from_dict(config)
    assert key in error.value.asked
    assert allowed in f"{error.value.found} {error.value.to_do}"


@pytest.mark.parametrize(
    ("entry", "found"),
    [
        ({"layer_name": "5"}, "no layer '5'"),
        ({"layer_type": "conv2", "overall_quantize_config": {}}, "conv2d"),
        ({"layer_type": "matmul"}, "no layer 'matmul'"),
    ],
    ids=["name", "type", "absent"],
)
def test_a_layer_that_is_not_there_is_refused(entry, found, tmp_path):
    with pytest.raises(RecipeError, match=found):
        plan(tmp_path, {**FLOAT, "layer_quantize_config": [entry]})


def test_another_channel_axis_is_refused(tmp_path):
    with pytest.raises(RecipeError, match="allowed is 0"):
        plan(tmp_path, cpu(per_channel=True, ch_axis=1))


def test_a_file_that_is_no_config_is_refused(tmp_path):
    (tmp_path / "cfg.json").write_text('{"overall_quantize_config": {"calib_statistic_method":"mean"\uff0c}}')
    with pytest.raises(RecipeError, match="not JSON"):
        VitisConfig.load(tmp_path / "cfg.json")
    with pytest.raises(RecipeError, match="No such file"):
        VitisConfig.load(tmp_path / "absent.json")


def test_exports_need_something_deployed(tmp_path):
    qat_processor = processor(tmp_path, cpu(method="lsq"))
    with pytest.raises(DeployError, match="nothing was deployed"):
        qat_processor.export_onnx_model(tmp_path)
    qat_processor.to_deployable(qat_processor.trainable_model(), tmp_path / "out")
    with pytest.raises(DeployError, match="target_device 'CPU'"):
        qat_processor.export_xmodel(tmp_path / "x")


# ---- the statistics themselves ----

UNSIGNED = Scheme(IntGrid(8, signed=False), symmetric=False)


@pytest.mark.parametrize(("statistic", "top"), [("max", 8.0), ("mean", 4.0), ("median", 2.0), ("moving", 2.6)])
def test_how_batches_become_one_range(statistic, top):
    observer = BatchStatistic(UNSIGNED, statistic=statistic)
    for high in (2.0, 2.0, 8.0):
        observer.observe(torch.tensor([0.0, high]))
    # moving: 0.9 * 2 + 0.1 * 8
    assert observer.qparams().scale.item() == pytest.approx(top / 255)


def test_the_mode_is_that_of_powers_of_two():
    observer = BatchStatistic(Scheme(IntGrid(8), scale="power_of_two"), statistic="modal")
    for high in (100.0, 120.0, 1000.0):
        observer.observe(torch.tensor([0.0, high]))
    assert observer.qparams().scale.item() == 1.0


def test_averages_are_taken_before_the_snap():
    observer = BatchStatistic(Scheme(IntGrid(8), scale="power_of_two"), statistic="mean")
    for high in (127 * 0.6, 127 * 1.2):
        observer.observe(torch.tensor([0.0, high]))
    assert observer.qparams().scale.item() == 1.0  # of 0.9; of the snapped ones, 1 and 2, it would be 2


def test_the_range_of_a_weight_follows_it_and_that_of_an_activation_moves():
    for role, top in (("weight", 510.0), ("activation", 0.9 * 255 + 0.1 * 510)):
        quantizer = FollowingRange(UNSIGNED, (), role=role)
        quantizer.initialize(QParams(torch.tensor(1.0), torch.tensor(0)))
        quantizer(torch.tensor([0.0, 510.0]))
        assert quantizer.qparams().scale.item() == pytest.approx(top / 255)
        quantizer.eval()(torch.tensor([0.0, 9999.0]))
        assert quantizer.qparams().scale.item() == pytest.approx(top / 255)


def test_gradients_are_those_of_a_clipped_straight_through_estimator():
    quantizer = FollowingRange(Scheme(IntGrid(8), granularity=PerChannel(0), rounding=Rounding.FLOOR), (2, 2)).eval()
    quantizer.initialize(QParams.symmetric(torch.tensor([1.0, 2.0])))
    x = torch.tensor([[1.5, 999.0], [-3.0, -999.0]], requires_grad=True)
    quantizer(x).sum().backward()
    assert quantizer(x).tolist() == [[1.0, 127.0], [-4.0, -256.0]]
    assert x.grad.tolist() == [[1.0, 0.0], [1.0, 0.0]]

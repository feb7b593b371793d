"""PPQ's types one by one: what each field of a config does to the plan, and what is refused."""

from __future__ import annotations

import json
from itertools import product

import onnx
import pytest

from detent.compat.ppq import (
    BaseQuantizer,
    OperationQuantizationConfig,
    QuantizationPolicy,
    QuantizationProperty,
    QuantizationSetting,
    QuantizationSettingFactory,
    QuantizationStates,
    Quantizer,
    RoundingPolicy,
    TargetPlatform,
    TorchExecutor,
    dispatch_graph,
    export_ppq_graph,
    graphwise_error_analyse,
    layerwise_error_analyse,
    load_onnx_graph,
    register_network_quantizer,
)
from detent.compat.ppq.platforms import BACKEND_OF
from detent.errors import DetentError, NotCalibratedError, RecipeError, SchemeError, UnknownNameError
from detent.graph import FloatTensor
from detent.numerics import Rounding
from tests.compat.ppq_nets import batches, save_net

P, S = QuantizationProperty, QuantizationStates


@pytest.fixture
def graph(tmp_path):
    return load_onnx_graph(save_net(tmp_path / "net.onnx"))


@pytest.fixture
def own(monkeypatch, graph):
    """Quantizes the graph with configs that a function has changed; gives the plan."""
    from detent.compat.ppq import quantizer

    monkeypatch.setattr(quantizer, "_QUANTIZERS", {})

    def run(change=lambda _operation, _config: None, types=("Conv", "Gemm"), setting=None):
        class Own(BaseQuantizer):
            quant_operation_types = frozenset(types)

            def init_quantize_config(self, operation) -> OperationQuantizationConfig:
                config = super().init_quantize_config(operation)
                change(operation, config)
                return config

        register_network_quantizer(Own, TargetPlatform.EXTENSION)
        made = Quantizer(TargetPlatform.EXTENSION, graph)
        made._verbose = False
        made.quantize(batches()[0], batches(), TorchExecutor(graph, "cpu"), setting, 8)
        return graph.prepared.plan

    return run


def test_eighteen_policies_are_valid():
    valid = 0
    for flags in product((0, 1), repeat=8):
        try:
            QuantizationPolicy(sum(flag << place for place, flag in enumerate(flags)))
            valid += 1
        except SchemeError:
            pass
    assert valid == 18


def test_a_policy_says_its_properties():
    policy = QuantizationPolicy(P.SYMMETRICAL + P.LINEAR + P.PER_CHANNEL + P.POWER_OF_2)
    assert [name for name, has in policy.to_dict().items() if has] == [
        "PER_CHANNEL", "LINEAR", "SYMMETRICAL", "POWER_OF_2",
    ]  # fmt: skip
    assert policy == QuantizationPolicy(P.LINEAR + P.PER_CHANNEL + P.POWER_OF_2 + P.SYMMETRICAL + P.LINEAR)


def test_roundings_have_ppq_s_numbers_and_our_ties():
    assert RoundingPolicy(4).rounding is Rounding.HALF_AWAY
    assert RoundingPolicy.ROUND_HALF_DOWN.rounding is Rounding.HALF_DOWN
    assert len({one.value for one in RoundingPolicy}) == 8


def test_states_that_quantize():
    assert [one.name for one in S if S.is_activated(one)] == ["ACTIVATED", "PASSIVE"]


def test_every_member_of_ppq_is_there():
    assert TargetPlatform(101) is TargetPlatform.TRT_INT8
    assert TargetPlatform(-10086) is TargetPlatform.EXTENSION
    assert len(TargetPlatform) >= 36 + 4  # those of 0.6.6, and what the document has besides


def test_width_policy_observer_and_rounding_reach_the_plan(own):
    def change(_, config):
        weight = config.input_quantization_config[1]
        weight.num_of_bits, weight.quant_min, weight.quant_max = 4, -7, 7
        weight.policy = QuantizationPolicy(P.SYMMETRICAL + P.LINEAR + P.PER_CHANNEL + P.POWER_OF_2)
        weight.rounding = RoundingPolicy.ROUND_HALF_UP
        weight.observer_algorithm = "minmax"
        config.input_quantization_config[0].observer_algorithm = "mse"

    plan = own(change)
    scheme = plan["conv1.weight"].scheme
    assert (scheme.grid.bits, scheme.grid.narrow, scheme.scale) == (4, True, "power_of_two")
    assert scheme.rounding is Rounding.HALF_UP
    assert "per-channel" in str(scheme)
    assert plan["conv1.weight"].observer == "minmax"
    assert plan["x"].observer == "mse"


def test_configs_of_one_operation_speak_for_it_alone(own):
    def change(operation, config):
        if operation.name == "conv2":
            weight = config.input_quantization_config[1]
            weight.num_of_bits, weight.quant_min, weight.quant_max = 16, -(2**15), 2**15 - 1

    plan = own(change)
    assert plan["conv2.weight"].scheme.grid.bits == 16
    assert plan["conv1.weight"].scheme.grid.bits == 8


def test_fp32_leaves_a_tensor_float(own):
    def change(operation, config):
        if operation.name == "conv1":
            config.input_quantization_config[1].state = S.FP32
        if operation.name == "fc":
            config.input_quantization_config[0].state = S.FP32

    plan = own(change)
    assert isinstance(plan["conv1.weight"], FloatTensor)
    assert isinstance(plan["f"], FloatTensor)
    assert not isinstance(plan["x"], FloatTensor)


def test_activated_keeps_the_scale_it_is_given(own, graph):
    def change(operation, config):
        if operation.name == "conv1":
            data = config.input_quantization_config[0]
            data.state, data.scale, data.offset = S.ACTIVATED, 0.05, 0

    own(change)
    assert float(graph.operations["conv1"].config.input_quantization_config[0].scale) == pytest.approx(0.05)


def test_an_initial_bias_has_a_scale_of_its_own(own):
    def change(operation, config):
        if operation.num_of_input == 3:
            bias = config.input_quantization_config[2]
            bias.state, bias.observer_algorithm = S.INITIAL, "minmax"
            bias.num_of_bits, bias.quant_min, bias.quant_max = 16, -(2**15), 2**15 - 1

    plan = own(change)
    assert (plan["fc.bias"].scheme.grid.bits, plan["fc.bias"].quantizer) == (16, "fixed")


def test_outputs_are_quantized_where_their_config_says_so(own, graph):
    def change(_, config):
        config.output_quantization_config[0].state = S.INITIAL

    plan = own(change, types=("Conv", "Relu", "Add", "GlobalAveragePool", "Flatten", "Gemm"))
    names = {entry.tensor for entry in plan.quantized}
    assert {"x", "r1", "c2", "a", "g", "f", "y"} <= names
    assert "c1" not in names  # fused with the activation behind it
    assert graph.operations["conv2"].config.input_quantization_config[0].state is S.OVERLAPPED


def test_settings_name_algorithms(own, graph):
    setting = QuantizationSetting(equalization=True, bias_correct=True)
    setting.quantize_activation_setting.calib_algorithm = "kl"
    plan = own(setting=setting)
    assert [one.name for one in graph.prepared.recipe.algorithms] == ["equalize", "bias_correction"]
    assert plan["x"].observer == "kl"


def test_ssd_is_equalization_with_its_loss_measured(own, graph):
    setting = QuantizationSetting(ssd_equalization=True)
    setting.ssd_setting.iteration = 2
    own(setting=setting)
    (algorithm,) = graph.prepared.recipe.algorithms
    assert (algorithm.name, algorithm.options) == ("equalize", {"rounds": 2})
    (report,) = graph.prepared.algorithm_notes
    assert report.metric == "noise over signal"


def test_parameters_have_an_observer_of_their_own(own):
    setting = QuantizationSetting()
    setting.quantize_parameter_setting.calib_algorithm = "MSE"
    plan = own(setting=setting)
    assert (plan["conv1.weight"].observer, plan["x"].observer) == ("mse", "percentile")


@pytest.mark.parametrize("fusion", [True, False])
def test_without_fusion_what_is_inside_of_a_chain_is_quantized(graph, fusion):
    made = Quantizer(TargetPlatform.PPL_CUDA_INT8, graph)
    made.quantize(batches()[0], batches(), TorchExecutor(graph, "cpu"), QuantizationSetting(fusion=fusion), 4)
    quantized = {entry.tensor for entry in graph.prepared.plan.quantized}
    assert ("c1" in quantized) != fusion, "what conv1 gives to its ReLU"


def test_lsq_optimization_tunes_weights_and_scales(own, graph):
    setting = QuantizationSetting(lsq_optimization=True)
    setting.lsq_optimization_setting.steps = 2
    plan = own(setting=setting)
    assert {plan[name].quantizer for name in ("x", "conv1.weight")} == {"lsq"}
    assert [one.name for one in graph.prepared.recipe.algorithms] == ["finetune_weights"]


def test_lsq_optimization_of_weights_alone(own, graph):
    setting = QuantizationSetting(lsq_optimization=True)
    setting.lsq_optimization_setting.steps, setting.lsq_optimization_setting.lr = 2, 1e-4
    setting.lsq_optimization_setting.is_scale_trainable = False
    plan = own(setting=setting)
    assert {plan[name].quantizer for name in ("x", "conv1.weight")} == {"fixed"}
    assert graph.prepared.recipe.algorithms[0].options == {"steps": 2, "weight_rate": 1e-4, "scale_rate": 1e-4}


def test_blockwise_reconstruction_learns_the_rounding(own, graph):
    setting = QuantizationSetting(blockwise_reconstruction=True)
    setting.blockwise_reconstruction_setting.steps = 5

    def narrow(_, config):
        weight = config.input_quantization_config[1]
        weight.num_of_bits, weight.quant_min, weight.quant_max = 3, -4, 3

    plan = own(narrow, setting=setting)
    assert plan["conv1.weight"].quantizer == "adaround"
    (report,) = graph.prepared.algorithm_notes
    assert (report.algorithm, len(report.changes)) == ("brecq", 3)


def test_a_backend_s_own_files_are_exported(graph, tmp_path):
    made = Quantizer(TargetPlatform.RKNN_INT8, graph)
    made.quantize(batches()[0], batches(), TorchExecutor(graph, "cpu"), None, 8)
    export_ppq_graph(graph, TargetPlatform.ONNX, tmp_path / "float.onnx", tmp_path / "config.json")
    assert set(json.loads((tmp_path / "config.json").read_text())) == {"configs", "dispatchings", "values"}
    assert (tmp_path / "float.onnx").is_file()


def test_a_quantizer_of_ones_own_is_exported_as_ppq_s_table(own, graph, tmp_path):
    own()
    export_ppq_graph(graph, TargetPlatform.ONNX, tmp_path / "float.onnx", tmp_path / "config.json")
    held = json.loads((tmp_path / "config.json").read_text())
    assert {held["dispatchings"][name] for name in ("conv1", "conv2", "fc")} == {"EXTENSION"}
    assert held["dispatchings"]["add"] == "FP32"
    assert list(held["configs"]["conv1"]) == ["x", "w1"], "under the names of the file"
    stored = {one.name for one in onnx.load(tmp_path / "float.onnx").graph.initializer}
    assert {"w1", "w2", "w3"} <= stored


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("default_setting", {}),
        ("trt_setting", {}),
        ("ascend_setting", {"fusion": False}),
        ("dsp_setting", {"equalization": True, "rounds": 3}),
        ("fpga_setting", {"equalization": True, "rounds": 10}),
        ("metax_pertensor_setting", {"equalization": True, "rounds": 10}),
    ],
)
def test_settings_of_the_factory(name, said):
    setting = getattr(QuantizationSettingFactory, name)()
    assert setting.fusion == said.get("fusion", True)
    found = [one["options"]["rounds"] for one in setting.algorithms()]
    assert found == ([said["rounds"]] if said.get("equalization") else [])


PLATFORMS = sorted(BACKEND_OF, key=lambda one: one.name)


@pytest.mark.few(7)
@pytest.mark.parametrize("platform", PLATFORMS, ids=lambda one: one.name)
def test_every_platform_with_a_backend_quantizes_and_exports(graph, tmp_path, platform):
    made = Quantizer(platform, graph)
    made.quantize(batches()[0], batches(), TorchExecutor(graph, "cpu"), None, 8)
    written = export_ppq_graph(graph, platform, tmp_path / "net.onnx", tmp_path / "config")
    assert (tmp_path / "net.onnx") in written
    assert all(path.stat().st_size for path in written)


def test_parameters_go_with_the_float_network(graph, tmp_path):
    Quantizer(TargetPlatform.TENGINE_INT8, graph).quantize(batches()[0], batches(), TorchExecutor(graph, "cpu"))
    export_ppq_graph(graph, TargetPlatform.TENGINE_INT8, tmp_path / "net.onnx", tmp_path / "net.scale")
    assert "QuantizeLinear" not in {node.op_type for node in onnx.load(tmp_path / "net.onnx").graph.node}
    assert len((tmp_path / "net.scale").read_text().split()) % 3 == 0  # tensor, scale, zero point
    assert (tmp_path / "net_model.onnx").is_file()


def test_errors_by_layer(own, graph):
    own()
    layers = layerwise_error_analyse(graph, "cpu", batches(), verbose=False)
    assert list(layers) == ["conv1", "conv2", "fc"]
    assert all(0 < value < 1e-2 for value in layers.values())
    places = graphwise_error_analyse(graph, "cpu", batches(), verbose=False)
    assert list(places) == ["conv1", "conv2", "fc"]
    cosines = graphwise_error_analyse(graph, "cpu", batches(), method="cosine", verbose=False)
    assert all(0.99 < value < 1 for value in cosines.values())


def _default_range(_, config):
    config.input_quantization_config[0].quant_min, config.input_quantization_config[0].quant_max = -127, 128


def _baked(_, config):
    config.input_quantization_config[1].state = S.BAKED


def _wrong_axis(_, config):
    config.input_quantization_config[1].channel_axis = 1


def _floating(_, config):
    config.input_quantization_config[1].policy = QuantizationPolicy(
        P.FLOATING + P.SYMMETRICAL + P.POWER_OF_2 + P.PER_TENSOR
    )


def _some_outputs(operation, config):
    if operation.name == "conv1":
        config.output_quantization_config[0].state = S.INITIAL


def _two_bias_rules(operation, config):
    if operation.num_of_input == 3:
        config.input_quantization_config[2].state = S.INITIAL if operation.name == "fc" else S.PASSIVE_INIT


@pytest.mark.parametrize(
    ("change", "found"),
    [
        (_default_range, "integers of 8 bits have"),
        (_baked, "parameters are not overwritten"),
        (_wrong_axis, "along axis 0"),
        (_floating, "FLOATING grids are not simulated"),
        (_some_outputs, "a target treats all of them alike"),
        (_two_bias_rules, "one rule for all biases"),
    ],
)
def test_configs_that_mean_nothing_here_are_refused(own, change, found):
    with pytest.raises(SchemeError, match=found):
        own(change)


def test_settings_that_undo_each_other_are_refused(own):
    with pytest.raises(DetentError, match="equalization and ssd_equalization"):
        own(setting=QuantizationSetting(equalization=True, ssd_equalization=True))
    with pytest.raises(DetentError, match="lsq_optimization and blockwise_reconstruction"):
        own(setting=QuantizationSetting(lsq_optimization=True, blockwise_reconstruction=True))


def test_a_field_that_means_nothing_here_cannot_be_set():
    setting = QuantizationSettingFactory.default_setting()
    with pytest.raises(RecipeError, match="it has steps, lr, is_scale_trainable here"):
        setting.lsq_optimization_setting.block_size = 8
    with pytest.raises(RecipeError, match="matrix_factorization"):
        setting.matrix_factorization = True


def test_a_platform_without_a_quantizer_names_those_that_have_one(graph):
    for platform in TargetPlatform:
        if platform not in BACKEND_OF:
            with pytest.raises(UnknownNameError, match="TRT_INT8"):
                Quantizer(platform, graph)


def test_what_is_not_quantized_is_not_exported(graph, tmp_path):
    with pytest.raises(NotCalibratedError):
        export_ppq_graph(graph, TargetPlatform.ONNXRUNTIME, tmp_path / "x.onnx")


def test_an_unknown_operation_is_not_dispatched(graph):
    setting = QuantizationSetting()
    setting.dispatching_table.append("convolution", TargetPlatform.FP32)
    with pytest.raises(UnknownNameError, match="conv1"):
        dispatch_graph(graph, TargetPlatform.TRT_INT8, setting)

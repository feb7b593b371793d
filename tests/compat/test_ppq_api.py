"""What scripts import from `ppq.api` and `ppq.lib` first: one call from a model to a quantized graph, and its kin."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from detent.compat import ppq
from detent.compat.ppq import TargetPlatform
from detent.errors import DeployError, EngineError, OnnxError, RecipeError, UnknownNameError
from tests.compat.ppq_nets import batches, save_net
from tests.frontends.caffe.test_caffe import NET, save, tiny

TRT = TargetPlatform.TRT_INT8


@pytest.fixture
def file(tmp_path):
    return save_net(tmp_path / "model.onnx")


def net() -> nn.Module:
    torch.manual_seed(0)
    body = (
        nn.Conv2d(3, 4, 3, padding=1),
        nn.BatchNorm2d(4),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(64, 5),
    )
    return nn.Sequential(*body).eval()


def noise(graph: ppq.BaseGraph, exact: torch.Tensor) -> float:
    found = ppq.TorchExecutor(graph, "cpu").forward(batches()[0])[0]
    return float((exact - found).square().sum() / exact.square().sum())


@torch.no_grad()
def exact(file) -> torch.Tensor:
    return ppq.TorchExecutor(ppq.load_onnx_graph(file), "cpu").forward(batches()[0])[0]


def test_an_onnx_file_in_one_call(file):
    graph = ppq.quantize_onnx_model(
        onnx_import_file=file, calib_dataloader=batches(), calib_steps=8, input_shape=[2, 3, 8, 8], platform=TRT,
        setting=ppq.QuantizationSettingFactory.default_setting(), collate_fn=lambda x: x, device="cpu", verbose=0,
    )  # fmt: skip
    assert graph.prepared.backend.name == "tensorrt"
    assert noise(graph, exact(file)) < 1e-3


def test_a_graph_in_one_call(file):
    graph = ppq.format_graph(ppq.load_graph(file))
    made = ppq.quantize_native_model(graph, batches(), 8, None, TRT, inputs=[batches()[0]], device="cpu")
    assert made is graph
    assert noise(graph, exact(file)) < 1e-3


def test_a_graph_that_is_only_dispatched(file):
    graph = ppq.quantize_onnx_model(file, None, None, [2, 3, 8, 8], TRT, device="cpu", do_quantize=False)
    assert graph.prepared is None
    assert graph.operations["conv1"].platform is TRT


def test_a_torch_model_in_one_call(tmp_path):
    model = net()
    graph = ppq.quantize_torch_model(model, batches(), 8, [2, 3, 8, 8], TRT, device="cpu")
    assert [one.type for one in graph.operations.values()] == ["Conv", "Relu", "MaxPool", "Reshape", "Gemm"]
    with torch.no_grad():
        assert noise(graph, model(batches()[0])) < 1e-3
    written = ppq.export_ppq_graph(graph, TRT, tmp_path / "model")
    assert written[0] == tmp_path / "model.onnx"


def test_a_torch_model_as_a_graph():
    graph = ppq.load_torch_model(net(), "mine.onnx", sample=batches()[0], device="cpu")
    assert (graph.name, next(iter(graph.operations)), graph.prepared) == ("mine.onnx", "0", None)


def test_a_caffe_network_in_one_call(tmp_path):
    graph = ppq.quantize_caffe_model(*save(tmp_path, NET, tiny()), batches(), 4, [2, 3, 8, 8], TRT, device="cpu")
    assert {"conv.weight", "fc.weight"} <= {one.tensor for one in graph.prepared.plan.quantized}
    with pytest.raises(OnnxError, match="caffemodel_path is not given"):
        ppq.load_graph(tmp_path / "net.prototxt", ppq.NetworkFramework.CAFFE)


def test_a_working_directory(file, tmp_path):
    graph = ppq.quantize(tmp_path, None, ppq.NetworkFramework.ONNX, "cpu", [2, 3, 8, 8], TRT, batches(), 8)
    written = ppq.export(tmp_path, graph, TargetPlatform.ONNXRUNTIME)
    assert written == [tmp_path / "quantized.onnx", tmp_path / "quantized.json"]
    assert all(path.stat().st_size for path in written)
    assert file.is_file()


def test_what_cannot_be_here_is_said_in_one_sentence(file):
    with pytest.raises(OnnxError, match="pickles, which execute code when they are read"):
        ppq.load_native_graph("graph.native")
    told = pytest.warns(UserWarning, match="torch's own kernels are used; PPQ's are not part of Detent")
    with told, ppq.ENABLE_CUDA_KERNEL():
        pass
    with ppq.DISABLE_CUDA_KERNEL():
        pass
    with pytest.raises(RecipeError, match="neither input_shape nor inputs"):
        ppq.quantize_onnx_model(file, batches(), 8, None, TRT, device="cpu")


@pytest.mark.skipif(torch.cuda.is_available(), reason="cuda is there")
def test_the_device_is_cuda_unless_another_is_named(file):
    with pytest.raises(EngineError, match="run on 'cuda'"):
        ppq.quantize_onnx_model(file, batches(), 8, [2, 3, 8, 8], TRT)


# ---- pipelines ----


def dispatched(file, platform=TRT):
    graph = ppq.dispatch_graph(ppq.load_onnx_graph(file), platform)
    return graph, ppq.TorchExecutor(graph, "cpu")


def test_a_pipeline_of_passes_is_a_setting(file):
    graph, executor = dispatched(file)
    pipeline = ppq.Pipeline(
        [
            ppq.QuantizeSimplifyPass(),
            ppq.QuantizeFusionPass(),
            ppq.LayerwiseEqualizationPass(iterations=2),
            ppq.ParameterQuantizePass(),
            ppq.RuntimeCalibrationPass("kl"),
            ppq.PassiveParameterQuantizePass(),
        ]
    )
    pipeline.append_optimization_to_pipeline(ppq.BiasCorrectionPass())
    pipeline.optimize(graph, batches(), executor, calib_steps=4)
    assert {one.observer for one in graph.prepared.plan.quantized if one.role == "activation"} == {"kl"}
    found = [(one.name, dict(one.options)) for one in graph.prepared.recipe.algorithms]
    assert found == [("equalize", {"rounds": 2}), ("bias_correction", {})]
    assert "c1" not in {one.tensor for one in graph.prepared.plan.quantized}, "conv1 is fused with its ReLU"


def test_the_pass_that_tunes(file):
    graph, executor = dispatched(file)
    passes = [ppq.RuntimeCalibrationPass(), ppq.LearnedStepSizePass(steps=2, lr=1e-4, is_scale_trainable=False)]
    ppq.Pipeline(passes).optimize(graph, batches(), executor, calib_steps=4)
    (tuned,) = graph.prepared.recipe.algorithms
    assert tuned.options == {"steps": 2, "weight_rate": 1e-4, "scale_rate": 1e-4}


def test_a_pass_of_ones_own_runs_in_its_place(file):
    seen = []

    class Mine(ppq.QuantizationOptimizationPass):
        def optimize(self, graph, dataloader, executor, **kwargs):
            seen.append((graph.prepared is None, kwargs["calib_steps"], len(dataloader), type(executor).__name__))

    graph, executor = dispatched(file)
    ppq.Pipeline([Mine(), ppq.RuntimeCalibrationPass(), Mine()]).optimize(graph, batches(), executor, calib_steps=4)
    assert seen == [(True, 4, 8, "TorchExecutor"), (False, 4, 8, "TorchExecutor")]


def test_pipelines_that_quantize_nothing_are_refused(file):
    graph, executor = dispatched(file)
    with pytest.raises(RecipeError, match="add RuntimeCalibrationPass"):
        ppq.Pipeline([ppq.QuantizeFusionPass()]).optimize(graph, batches(), executor)
    with pytest.raises(RecipeError, match="it is not a QuantizationOptimizationPass"):
        ppq.Pipeline([print])
    with pytest.raises(RecipeError, match="it is dispatched to none"):
        ppq.Pipeline([ppq.RuntimeCalibrationPass()]).optimize(ppq.load_onnx_graph(file), batches(), executor)


# ---- ppq.lib, ppq.IR ----


def test_operations_that_have_configs(file):
    graph = ppq.quantize_onnx_model(file, batches(), 4, [2, 3, 8, 8], TargetPlatform.ACADEMIC_INT8, device="cpu")
    quantized = [one for one in graph.operations.values() if isinstance(one, ppq.QuantableOperation)]
    assert [one.name for one in quantized] == ["conv1", "conv2", "fc"]
    pairs = quantized[0].config_with_variable()
    assert [(one.num_of_bits, variable.name) for one, variable in pairs] == [(8, "x"), (8, "w1"), (30, "b1"), (8, "c1")]
    assert graph.operations["add"].config_with_variable() == []


def test_a_parser_a_dispatcher_and_an_exporter(file, tmp_path):
    graph = ppq.Parser(ppq.NetworkFramework.ONNX).build(file)
    table = ppq.Dispatcher(graph, "pointwise").dispatch({"Conv", "Gemm", "Relu"}, quant_platform=TRT)
    assert [name for name, platform in table.items() if platform is TRT] == ["conv1", "conv2", "fc"]
    ppq.quantize_native_model(graph, batches(), 4, [2, 3, 8, 8], TRT, device="cpu")
    written = ppq.Exporter(TargetPlatform.ONNXRUNTIME).export(tmp_path / "out.onnx", graph, tmp_path / "out.json")
    assert written == [tmp_path / "out.onnx", tmp_path / "out.json"]
    with pytest.raises(DeployError, match="export for NATIVE"):
        ppq.Exporter(TargetPlatform.NATIVE)
    with pytest.raises(UnknownNameError, match="the dispatcher 'other'"):
        ppq.Dispatcher(graph, "other")


def test_an_observer_sets_the_scale_of_its_config():
    config = ppq.LinearQuantizationConfig(symmetrical=False, quant_min=0, quant_max=255, calibration="minmax")
    observer = ppq.Observer(config)
    observer.observe(torch.tensor([-1.0, 0.5]))
    observer.observe(torch.tensor([0.0, 4.1]))
    observer.render_quantization_config()
    assert config.scale.item() == pytest.approx(5.1 / 255)
    assert config.offset.item() == 50
    assert config.state is ppq.QuantizationStates.ACTIVATED


def test_an_observer_of_channels():
    config = ppq.LinearQuantizationConfig(channel_axis=1, power_of_2=True)
    observer = ppq.Observer(config)
    observer.observe(torch.tensor([[127.0, -0.5], [3.0, 0.25]]))
    observer.render_quantization_config()
    assert config.scale.tolist() == [1.0, 2.0**-8]  # -0.5 is -128 steps

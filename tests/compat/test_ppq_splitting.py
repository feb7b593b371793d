"""PPQ's weight_split and channel_split: which layers they change, that the float network stays, and what they gain."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from detent.compat.ppq import (
    QuantizationSetting,
    Quantizer,
    TargetPlatform,
    TorchExecutor,
    export_ppq_graph,
    load_onnx_graph,
)
from detent.errors import RecipeError, UnknownNameError
from tests.compat.ppq_nets import batches, save_chain

ONE_SCALE = TargetPlatform.ACADEMIC_INT4  # one scale for a whole weight, which an outlier takes up


@pytest.fixture
def path(tmp_path):
    return save_chain(tmp_path / "chain.onnx")


def quantized(path, setting, platform=ONE_SCALE):
    graph = load_onnx_graph(path)
    Quantizer(platform, graph).quantize(batches()[0], batches(), TorchExecutor(graph, "cpu"), setting, 4)
    return graph


def noise(path, graph) -> float:
    """Of the quantized outputs, over the signal of the float network in the file."""
    wanted = TorchExecutor(load_onnx_graph(path), "cpu").forward(batches()[0])[0]
    found = TorchExecutor(graph, "cpu").forward(batches()[0])[0]
    return float((found - wanted).square().mean() / wanted.square().mean())


def channels(*layers, directions=()):
    setting = QuantizationSetting(channel_split=True)
    setting.channel_split_setting.interested_layers = list(layers)
    setting.channel_split_setting.search_directions = list(directions)
    setting.channel_split_setting.expand_ratio = 0.125
    return setting


def weights(*layers, threshold=0.8):
    setting = QuantizationSetting(weight_split=True)
    setting.weight_split_setting.interested_layers = list(layers)
    setting.weight_split_setting.value_threshold = threshold
    return setting


@pytest.mark.parametrize(
    ("setting", "sizes"),
    [
        (channels(), [(9, 3), (9, 9), (4, 9)]),
        (channels("conv1"), [(9, 3), (8, 9), (4, 8)]),
        (channels("conv2", directions=["up"]), [(9, 3), (8, 9), (4, 8)]),
        (channels("conv2", directions=["down"]), [(8, 3), (9, 8), (4, 9)]),
    ],
    ids=["all", "down", "up", "second"],
)
def test_channels_are_doubled_where_the_setting_says(path, setting, sizes):
    graph = quantized(path, setting)
    shapes = [tuple(graph.module.get_submodule(f"conv{n}").weight.shape[:2]) for n in (1, 2, 3)]
    assert shapes == sizes
    assert list(graph.operations) == ["conv1", "relu1", "conv2", "relu2", "conv3"], "names of the file"
    plain = TorchExecutor(load_onnx_graph(path), "cpu").forward(batches()[0])[0]
    # The same products in another order of summation.
    torch.testing.assert_close(graph.module(batches()[0]), plain, rtol=0, atol=1e-5)


def test_doubled_channels_cost_less_noise(path):
    assert noise(path, quantized(path, channels("conv1"))) < 0.7 * noise(path, quantized(path, QuantizationSetting()))


def test_split_weights_are_two_layers_and_a_sum(path):
    graph = quantized(path, weights("conv2"))
    assert list(graph.operations) == ["conv1", "relu1", "conv2.bulk", "conv2.rest", "add", "relu2", "conv3"]
    assert float(graph.module.get_submodule("conv2.bulk").weight.detach().abs().max()) == pytest.approx(0.8)
    quantizing = {entry.tensor for entry in graph.prepared.plan.quantized if entry.role == "weight"}
    assert quantizing == {"conv1.weight", "conv2.bulk.weight", "conv2.rest.weight", "conv3.weight"}
    assert graph.operations["conv2.rest"].platform is ONE_SCALE
    assert noise(path, graph) < 0.7 * noise(path, quantized(path, QuantizationSetting()))


def test_parts_of_a_layer_that_stays_float_stay_float(path):
    setting = weights("conv2")
    setting.dispatching_table.append("conv2", TargetPlatform.FP32)
    plan = quantized(path, setting).prepared.plan
    assert {e.tensor for e in plan.quantized if e.role == "weight"} == {"conv1.weight", "conv3.weight"}


@pytest.mark.parametrize("setting", [channels(), weights("conv2")], ids=["channels", "weights"])
def test_a_split_network_is_exported(path, setting, tmp_path):
    ort = pytest.importorskip("onnxruntime", reason="the exported file is run by it")
    graph = quantized(path, setting, TargetPlatform.ONNXRUNTIME)
    (written,) = export_ppq_graph(graph, TargetPlatform.ONNXRUNTIME, tmp_path / "split.onnx")
    options = ort.SessionOptions()
    options.add_session_config_entry("session.x64quantprecision", "1")  # no saturation on any CPU
    session = ort.InferenceSession(written, options, providers=["CPUExecutionProvider"])
    given = session.run(None, {session.get_inputs()[0].name: batches()[0].numpy()})[0]
    simulated = TorchExecutor(graph, "cpu").forward(batches()[0])[0].detach().numpy()
    step = float(graph.operations["conv3"].config.output_quantization_config[0].scale)
    # Of 512 outputs; where the engine's sum lies on a tie of two codes it may take the other.
    assert np.abs(given - simulated).max() <= 1.01 * step
    assert (given != simulated).mean() < 0.01


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        (weights(), "names no interested_layers"),
        (weights("conv9"), "the layers are conv1, conv2, conv3"),
        (weights("conv2", threshold=100.0), "its largest weight is"),
        (channels("conv1", directions=["up", "down"]), "there are 1 interested_layers"),
        (channels("conv1", directions=["left"]), "not one of up, down"),
        (channels("relu1"), "the layers are conv1"),
    ],
    ids=["none", "unknown", "threshold", "directions", "direction", "no-layer"],
)
def test_mistakes(path, setting, said):
    with pytest.raises((RecipeError, UnknownNameError), match=said):
        quantized(path, setting)

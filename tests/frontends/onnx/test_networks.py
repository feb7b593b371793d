"""Whole networks: exported by torch, loaded, and compared with ONNX Runtime on the same file."""

from __future__ import annotations

import logging
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from torch import Tensor, nn

import detent
from detent import load
from detent.frontends.onnx import source_of
from detent.graph import capture
from detent.quantizers import Quantizer
from tests.models import MODELS, SMALL

# dict_io and dataclass_io have inputs or outputs that torch's exporters refuse.
NETWORKS = sorted(set(MODELS) - {"dict_io", "dataclass_io"})
DYNAMO = ("vit_block", "lstm_tagger")  # each export takes seconds
# float32 through up to 50 layers: 5e-6 is the largest seen.
RELATIVE = 1e-4


def export(name: str, folder: Path, *, dynamo: bool = False, dynamic: bool = False) -> tuple[Path, tuple[Tensor, ...]]:
    torch.manual_seed(0)
    entry = MODELS[name]
    network, inputs = entry.build().eval(), entry.inputs()
    file = folder / f"{name}.onnx"
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the exporters, about themselves
        if dynamo:
            torch.onnx.export(network, inputs, file, dynamo=True, external_data=False, verbose=False)
        else:
            names = [f"in{index}" for index in range(len(inputs))]
            axes = {name: {0: "batch"} for name in names} if dynamic else None
            torch.onnx.export(
                network, inputs, file, dynamo=False, opset_version=17, input_names=names, dynamic_axes=axes
            )
    return file, inputs


def runtime(file: Path, inputs: tuple[Tensor, ...]) -> list[Any]:
    session = onnxruntime.InferenceSession(file, providers=["CPUExecutionProvider"])
    names = [value.name for value in session.get_inputs()]
    outputs: list[Any] = session.run(None, {name: x.numpy() for name, x in zip(names, inputs, strict=False)})
    return outputs


def assert_same(given: Any, wanted: list[Any]) -> None:
    tensors = given if isinstance(given, tuple) else (given,)
    assert len(tensors) == len(wanted)
    for tensor, value in zip(tensors, wanted, strict=True):
        assert np.abs(tensor.detach().numpy() - value).max() <= RELATIVE * np.abs(value).max()


@pytest.mark.by_default(*SMALL)
@pytest.mark.parametrize("name", NETWORKS)
def test_agrees_with_onnxruntime_and_has_no_graph_breaks(name: str, tmp_path: Path) -> None:
    file, inputs = export(name, tmp_path)
    graph = load(file)
    assert_same(graph(*inputs), runtime(file, inputs))
    captured = capture(graph, inputs)
    assert not captured.graph_breaks
    assert_same(captured.module(*inputs), runtime(file, inputs))


@pytest.mark.few(1)
@pytest.mark.parametrize("name", DYNAMO)
def test_agrees_on_files_of_the_new_exporter(name: str, tmp_path: Path) -> None:
    file, inputs = export(name, tmp_path, dynamo=True)
    assert_same(load(file)(*inputs), runtime(file, inputs))


@pytest.mark.parametrize("name", ["residual_cnn", "vit_small", "yolo_head", "bert_encoder"])
def test_dynamic_batch(name: str, tmp_path: Path) -> None:
    file, inputs = export(name, tmp_path, dynamic=True)
    graph = load(file)
    for batch in (1, 3):
        other = tuple(x[:1].repeat(batch, *[1] * (x.ndim - 1)) for x in inputs)
        assert_same(graph(*other), runtime(file, other))
    assert not capture(graph, inputs).graph_breaks


def test_layers_are_torch_modules(tmp_path: Path) -> None:
    graph = load(export("bert_encoder", tmp_path)[0])
    kinds = {type(module) for module in graph.children()}
    assert {nn.Linear, nn.LayerNorm, nn.Embedding} <= kinds
    linears = [module for module in graph.children() if type(module) is nn.Linear]
    assert len(linears) == 13
    assert all(module.bias is not None for module in linears)
    assert not any(node.target is torch.matmul for node in graph.graph.nodes if "dense" in node.name)


def test_every_parameter_is_an_initializer_of_the_file(tmp_path: Path) -> None:
    file, _ = export("vit_small", tmp_path)
    graph = load(file)
    initializers = {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in onnx.load(file).graph.initializer}
    parameters = dict(graph.named_parameters())
    assert parameters
    for path, tensor in parameters.items():
        origin = source_of(graph).parameters[path]
        values = initializers[origin.initializer]
        assert np.array_equal(tensor.detach().numpy(), values.T if origin.transposed else values)


def test_names_lead_back_to_the_file(tmp_path: Path) -> None:
    file, inputs = export("residual_cnn", tmp_path)
    graph, model = load(file), onnx.load(file).graph
    source = source_of(graph)
    outputs = {name: node.name for node in model.node for name in node.output}
    operations = [node for node in graph.graph.nodes if node.op.startswith("call")]
    assert [source.tensors[node.name] for node in operations] == [n.output[0] for n in model.node]
    assert [source.nodes[node.name] for node in operations] == [(n.name,) for n in model.node]
    assert all(outputs[source.tensors[node.name]] == source.nodes[node.name][0] for node in operations)
    assert source.modules["conv1_Conv"] == ("/conv1/Conv",)
    prepared = detent.prepare(graph, inputs, backend="onnxruntime")
    assert source_of(prepared) is source
    kept = {node.name for part in prepared.graphs.values() for node in part.nodes}
    assert {node.name for node in operations} <= kept


@pytest.mark.parametrize(("backend", "name"), [("onnxruntime", "residual_cnn"), ("openvino", "bert_encoder")])
def test_prepares_calibrates_and_trains(backend: str, name: str, tmp_path: Path) -> None:
    file, inputs = export(name, tmp_path)
    graph = load(file)
    prepared = detent.prepare(graph, inputs, backend=backend, recipe="lsq")
    detent.calibrate(prepared, [inputs])
    wanted = runtime(file, inputs)[0]
    before = prepared(*inputs)
    outputs = before if isinstance(before, tuple) else (before,)
    # 8 bits: the error is a small part of the range, and it is not zero.
    assert 0 < np.abs(outputs[0].detach().numpy() - wanted).max() < 0.2 * np.abs(wanted).max()
    sum(output.square().mean() for output in outputs).backward()
    weights = [p for n, p in prepared.named_parameters() if n.endswith("original") and p.ndim > 1]
    assert weights
    assert all(weight.grad is not None and weight.grad.abs().sum() > 0 for weight in weights)


def test_shape_computations_are_not_quantized(tmp_path: Path) -> None:
    """With a dynamic batch the file computes shapes; the plan is that of the file which does not."""
    (tmp_path / "fixed").mkdir()
    plans = []
    for dynamic, folder in ((True, tmp_path), (False, tmp_path / "fixed")):
        file, inputs = export("vit_small", folder, dynamic=dynamic)
        graph = load(file)
        assert any(getattr(module, "kind", "") == "shape" for module in graph.children()) == dynamic
        prepared = detent.prepare(graph, inputs, backend="onnxruntime")
        plans.append(sorted(type(module).__name__ for module in prepared.modules() if isinstance(module, Quantizer)))
    assert plans[0] == plans[1]

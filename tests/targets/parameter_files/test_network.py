"""The float network that parameter files lie beside: the names in both are the same."""

from __future__ import annotations

import onnx
import pytest
import torch
from torch import nn

import detent
from detent.deployment import deployment_of
from detent.targets.base.float_network import FloatNetwork
from tests.compat.ppq_nets import batches, save_net


@pytest.mark.parametrize("backend", ["qnn", "ppl_cuda", "tensorrt", "ncnn"])
@pytest.mark.parametrize("form", ["file", "module"])
def test_parameters_have_their_names_in_the_float_network(backend, form, tmp_path):
    torch.manual_seed(0)
    module = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(256, 2)).eval()
    model = detent.load(save_net(tmp_path / "net.onnx")) if form == "file" else module
    prepared = detent.prepare(model, (batches()[0],), backend=backend)
    detent.calibrate(prepared, batches(2))
    network = FloatNetwork.of(deployment_of(prepared), "test")
    weights = [name for name, tensor in network.parameters.items() if tensor.role == "weight"]
    assert weights == (["w1", "w2", "w3"] if form == "file" else ["0.weight", "3.weight"])
    assert set(network.parameters) <= set(network.network.constants)
    read = {name for op in network.ops for name in op.input_names}
    assert set(network.parameters) <= read


@pytest.mark.parametrize("backend", ["qnn", "ppl_cuda"])
def test_an_output_of_a_file_is_quantized_under_its_own_name(backend, tmp_path):
    prepared = detent.prepare(detent.load(save_net(tmp_path / "net.onnx")), (batches()[0],), backend=backend)
    detent.calibrate(prepared, batches(2))
    network = FloatNetwork.of(deployment_of(prepared), "test")
    (output,) = network.network.outputs
    assert network.activations[output.name].tensor == output.name
    assert network.producer(output.name).type == "Gemm"
    onnx.checker.check_model(onnx.load_model_from_string(network.content), full_check=True)

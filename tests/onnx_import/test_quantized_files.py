"""Files that another tool quantized: its Q and DQ nodes are gone, and what they did to the network is not."""

from __future__ import annotations

import logging

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static

import detent
from detent.graph import quantizers_of
from detent.onnx_import import load, source_of


class Batches(CalibrationDataReader):
    def __init__(self) -> None:
        rng = np.random.default_rng(0)
        self._left = iter([{"x": rng.standard_normal((2, 3, 8, 8)).astype(np.float32)} for _ in range(4)])

    def get_next(self):
        return next(self._left, None)


@pytest.fixture(scope="module")
def files(tmp_path_factory) -> tuple[str, str]:
    """A network of conv, relu, conv, add, relu, and what onnxruntime's quantizer makes of it."""
    rng = np.random.default_rng(1)
    folder = tmp_path_factory.mktemp("files")
    weights = {f"w{n}": rng.standard_normal(shape).astype(np.float32) for n, shape in enumerate([(3, 3, 3, 3)] * 2)}
    nodes = [
        helper.make_node("Conv", ["x", "w0"], ["c0"], name="first", pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["c0"], ["r0"], name="relu"),
        helper.make_node("Conv", ["r0", "w1"], ["c1"], name="second", pads=[1, 1, 1, 1]),
        helper.make_node("Add", ["r0", "c1"], ["a"], name="add"),
        helper.make_node("Relu", ["a"], ["y"], name="last"),
    ]
    ports = [[helper.make_tensor_value_info(name, TensorProto.FLOAT, [2, 3, 8, 8])] for name in "xy"]
    held = [numpy_helper.from_array(array, name) for name, array in weights.items()]
    model = helper.make_model(
        helper.make_graph(nodes, "net", *ports, held), opset_imports=[helper.make_opsetid("", 17)], ir_version=8
    )
    plain, quantized = str(folder / "plain.onnx"), str(folder / "quantized.onnx")
    onnx.save_model(model, plain)
    logging.disable(logging.WARNING)
    try:
        quantize_static(
            plain,
            quantized,
            Batches(),
            quant_format=QuantFormat.QDQ,
            per_channel=True,
            activation_type=QuantType.QUInt8,
            weight_type=QuantType.QInt8,
        )
    finally:
        logging.disable(logging.NOTSET)
    return plain, quantized


def test_a_relu_that_the_tool_left_to_the_grid_is_there_again(files):
    plain, quantized = files
    assert not any(node.op_type == "Relu" for node in onnx.load_model(quantized).graph.node)
    x = torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(2))
    expected = onnxruntime.InferenceSession(plain).run(None, {"x": x.numpy()})[0]
    found = load(quantized)(x).detach().numpy()
    assert found.min() == 0
    # Its weights are on a grid of 8 bits; without the ReLUs the outputs are off by more than half of the largest.
    assert np.abs(found - expected).max() < 0.02 * np.abs(expected).max()


def test_its_scales_are_taken_over_and_deployed_again(files, tmp_path):
    graph = load(files[1])
    x = torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(2))
    prepared = detent.prepare(graph, (x,), backend="onnxruntime")
    assert all(quantizer.calibrated for quantizer in quantizers_of(prepared))
    scales = {float(encoding.scale) for encoding in source_of(graph).encodings.values() if encoding.axis is None}
    own = {float(q.qparams().scale) for q in quantizers_of(prepared) if q.role == "activation"}
    assert own <= scales
    artifact = detent.deploy(prepared, tmp_path / "out")
    again = onnxruntime.InferenceSession(str(artifact.path("model.onnx"))).run(None, {"x": x.numpy()})[0]
    theirs = onnxruntime.InferenceSession(files[1]).run(None, {"x": x.numpy()})[0]
    step = max(own)
    assert np.abs(again - theirs).max() <= 1.01 * step  # theirs has a wider grid for weights: -128 to 127


def test_it_trains(files):
    prepared = detent.prepare(load(files[1]), (torch.zeros(2, 3, 8, 8),), backend="onnxruntime", recipe="lsq")
    prepared.train()(torch.randn(2, 3, 8, 8)).sum().backward()
    assert all(parameter.grad is not None for parameter in prepared.parameters())

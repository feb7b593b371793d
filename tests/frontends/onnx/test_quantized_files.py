"""Files that another tool quantized: its Q and DQ nodes are gone, and what they did to the network is not."""

from __future__ import annotations

import logging
import zlib

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_dynamic, quantize_static

import detent
from detent import load
from detent.errors import OnnxError
from detent.frontends.onnx import source_of
from detent.graph import quantizers_of


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
    plain = str(folder / "plain.onnx")
    onnx.save_model(model, plain)
    return plain, quantized_by_onnxruntime(plain, per_channel=True)


def quantized_by_onnxruntime(plain: str, **options) -> str:
    """A file that onnxruntime's quantizer makes; u8 activations and s8 weights if not said otherwise."""
    made = plain.replace(".onnx", f"-{zlib.crc32(repr(options).encode())}.onnx")
    types = {"activation_type": QuantType.QUInt8, "weight_type": QuantType.QInt8, "quant_format": QuantFormat.QDQ}
    logging.disable(logging.WARNING)
    try:
        quantize_static(plain, made, Batches(), **{**types, **options})
    finally:
        logging.disable(logging.NOTSET)
    return made


def ran(path: str, x: torch.Tensor) -> np.ndarray:
    """What onnxruntime computes, without saturation on any CPU."""
    options = onnxruntime.SessionOptions()
    options.add_session_config_entry("session.x64quantprecision", "1")
    return onnxruntime.InferenceSession(path, options).run(None, {"x": x.numpy()})[0]


VARIANTS = {
    "u8 s8 channels": {"per_channel": True},
    "s8 s8": {"activation_type": QuantType.QInt8},
    "u8 u8": {"weight_type": QuantType.QUInt8},
    "reduced range": {"per_channel": True, "reduce_range": True},
}


@pytest.mark.parametrize("options", VARIANTS.values(), ids=VARIANTS)
def test_every_variant_computes_what_it_did_and_is_deployed_as_it_was(files, options, tmp_path):
    made = quantized_by_onnxruntime(files[0], **options)
    x = torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(2))
    theirs = ran(made, x)
    prepared = detent.prepare(load(made), (x,), backend="onnxruntime").eval()
    assert all(quantizer.calibrated for quantizer in quantizers_of(prepared))
    step = float([q for q in quantizers_of(prepared) if q.role == "activation"][-1].qparams().scale)
    with torch.no_grad():  # the simulation adds in float, the engine in integers: one step at a tie
        assert np.abs(prepared(x).numpy() - theirs).max() <= 1.01 * step
    again = detent.deploy(prepared, tmp_path / "out").path("model.onnx")
    assert np.array_equal(ran(str(again), x), theirs)


def test_weights_on_a_grid_that_the_target_lacks_need_no_data(files):
    made = quantized_by_onnxruntime(files[0], weight_type=QuantType.QUInt8)
    x = torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(2))
    prepared = detent.prepare(load(made), (x,), backend="openvino").eval()
    assert all(quantizer.calibrated for quantizer in quantizers_of(prepared))
    with torch.no_grad():
        assert np.abs(prepared(x).numpy() - ran(made, x)).max() < 0.03 * np.abs(ran(made, x)).max()


def test_what_the_file_leaves_float_stays_float(files):
    made = quantized_by_onnxruntime(files[0], per_channel=True, nodes_to_exclude=["add", "last"])
    prepared = detent.prepare(load(made), (torch.zeros(2, 3, 8, 8),), backend="onnxruntime")
    assert prepared.plan["y"].reason == "the file leaves it float"


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


def test_a_dynamically_quantized_file_computes_what_it_did(tmp_path):
    weight = np.random.default_rng(3).standard_normal((16, 5)).astype(np.float32)
    ports = [
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, [4, size])] for name, size in (("x", 16), ("y", 5))
    ]
    node = helper.make_node("MatMul", ["x", "w"], ["y"], name="product")
    graph = helper.make_graph([node], "net", *ports, [numpy_helper.from_array(weight, "w")])
    plain, made = str(tmp_path / "plain.onnx"), str(tmp_path / "dynamic.onnx")
    onnx.save_model(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), plain)
    logging.disable(logging.WARNING)
    try:
        quantize_dynamic(plain, made, weight_type=QuantType.QInt8)
    finally:
        logging.disable(logging.NOTSET)
    assert "MatMulInteger" in {node.op_type for node in onnx.load_model(made).graph.node}
    x = torch.randn(4, 16, generator=torch.Generator().manual_seed(2))
    np.testing.assert_allclose(load(made)(x).numpy(), ran(made, x), rtol=1e-5, atol=1e-6)
    with pytest.raises(OnnxError, match="whose scale is measured while it runs"):
        detent.prepare(load(made), (x,), backend="onnxruntime")


def test_it_trains(files):
    prepared = detent.prepare(load(files[1]), (torch.zeros(2, 3, 8, 8),), backend="onnxruntime", recipe="lsq")
    prepared.train()(torch.randn(2, 3, 8, 8)).sum().backward()
    assert all(parameter.grad is not None for parameter in prepared.parameters())

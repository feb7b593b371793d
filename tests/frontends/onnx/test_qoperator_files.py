"""Files of operators on codes (QLinearConv, QGemm ...), as onnxruntime's quantizer writes them with `QOperator`."""

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
from onnx import TensorProto, helper, numpy_helper
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static

import detent
from detent import load
from detent.errors import OnnxError
from detent.graph import quantizers_of
from tests.models import MODELS

KINDS: dict[str, dict[str, Any]] = {
    "u8 s8 channels": {"per_channel": True},
    "s8 s8": {"activation_type": QuantType.QInt8},
    "u8 u8": {"weight_type": QuantType.QUInt8},
}


class Batches(CalibrationDataReader):
    def __init__(self, batches: list[torch.Tensor]) -> None:
        self._left = iter([{"x": batch.numpy()} for batch in batches])

    def get_next(self) -> Any:
        return next(self._left, None)


def on_codes(plain: Path, batches: list[torch.Tensor], **options: Any) -> Path:
    made = plain.with_name(f"{plain.stem}-codes.onnx")
    types = {"activation_type": QuantType.QUInt8, "weight_type": QuantType.QInt8, "quant_format": QuantFormat.QOperator}
    logging.disable(logging.WARNING)
    try:
        quantize_static(plain, made, Batches(batches), **{**types, **options})
    finally:
        logging.disable(logging.NOTSET)
    return made


def ran(path: Path, x: torch.Tensor, *, signed_adds: bool = False, signed_data: bool = False) -> list[np.ndarray]:
    """What onnxruntime computes, without saturation on any CPU: signed data have kernels that do not saturate, and
    operators on them none with that option. `signed_adds`: with Q/DQ, adds and products of signed codes run in float on
    x86 if this is not asked for."""
    options = onnxruntime.SessionOptions()
    options.add_session_config_entry("session.x64quantprecision", "0" if signed_adds or signed_data else "1")
    options.add_session_config_entry("session.qdqisint8allowed", "1" if signed_adds else "0")
    return onnxruntime.InferenceSession(str(path), options).run(None, {"x": x.numpy()})


def redeployed(path: Path, x: torch.Tensor, folder: Path) -> tuple[Any, Path]:
    prepared = detent.prepare(load(path), (x,), backend="onnxruntime").eval()
    assert all(quantizer.calibrated for quantizer in quantizers_of(prepared))
    return prepared, detent.deploy(prepared, folder / "out").path("model.onnx")


NETWORKS = {
    # A tensor is float for a pool and on a grid for a product.
    "mobile_cnn": list(KINDS),
    # Grids stand before batch norms, which are not folded then.
    "linear_bn": ["u8 s8 channels", "u8 u8"],
    # Behind Transpose and Gather the tensor has another grid than before.
    "vit_block": ["u8 s8 channels", "s8 s8"],
    # Constants are on grids: a class token and positions.
    "vit_small": ["u8 s8 channels"],
    "yolo_head": ["s8 s8"],
    "residual_cnn": ["u8 u8"],
}


@pytest.mark.pairwise(goals=lambda name, kind: [name, kind])
@pytest.mark.parametrize(("name", "kind"), [(name, kind) for name, kinds in NETWORKS.items() for kind in kinds])
def test_a_network_on_codes_deployed_again_gives_the_same_codes(name, kind, tmp_path):
    torch.manual_seed(0)
    entry = MODELS[name]
    plain = tmp_path / "plain.onnx"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the exporter, about itself
        torch.onnx.export(
            entry.build().eval(), entry.inputs(), plain, dynamo=False, opset_version=17, input_names=["x"]
        )
    made = on_codes(plain, [entry.inputs()[0] for _ in range(4)], **KINDS[kind])
    assert not any(node.op_type in ("Conv", "Gemm", "MatMul") for node in onnx.load_model(made).graph.node)
    x = entry.inputs()[0]
    _, again = redeployed(made, x, tmp_path)
    for _ in range(2):
        expected = ran(made, x, signed_data=kind == "s8 s8")
        for found, wanted in zip(ran(again, x, signed_adds=kind == "s8 s8"), expected, strict=True):
            np.testing.assert_array_equal(found, wanted)
        x = entry.inputs()[0]


def network(tmp_path: Path, middle: list[onnx.NodeProto], held: dict[str, np.ndarray]) -> Path:
    """x -> conv (4 channels) -> `middle`, from c to d -> conv, in float."""
    rng = np.random.default_rng(1)
    weights = {"w0": rng.standard_normal((4, 3, 3, 3)), "w1": rng.standard_normal((3, 4, 3, 3))}
    nodes = [
        helper.make_node("Conv", ["x", "w0"], ["c"], name="first", pads=[1, 1, 1, 1]),
        *middle,
        helper.make_node("Conv", ["d", "w1"], ["y"], name="second", pads=[1, 1, 1, 1]),
    ]
    tensors = {**{name: 0.3 * array.astype(np.float32) for name, array in weights.items()}, **held}
    ports = [[helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 3, 8, 8])]]
    ports += [[helper.make_tensor_value_info("y", TensorProto.FLOAT, None)]]
    graph = helper.make_graph(nodes, "net", *ports, [numpy_helper.from_array(v, k) for k, v in tensors.items()])
    path = tmp_path / "plain.onnx"
    onnx.save_model(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path


INTS = np.array([0, 0, 1, 2, 0, 0, 3, 0], np.int64)
MIDDLES: dict[str, tuple[list[onnx.NodeProto], dict[str, np.ndarray]]] = {
    "Split": (
        [
            helper.make_node("Split", ["c", "sizes"], ["a", "b"], name="split", axis=1),
            helper.make_node("Concat", ["b", "a"], ["d"], name="join", axis=1),
        ],
        {"sizes": np.array([1, 3], np.int64)},
    ),
    "Pad": ([helper.make_node("Pad", ["c", "pads"], ["d"], name="pad")], {"pads": INTS}),
    "Pad with a number": (
        [helper.make_node("Pad", ["c", "pads", "value"], ["d"], name="pad")],
        {"pads": INTS, "value": np.array(0.5, np.float32)},
    ),
    "Pad by reflection": ([helper.make_node("Pad", ["c", "pads"], ["d"], name="pad", mode="reflect")], {"pads": INTS}),
    "MaxPool": ([helper.make_node("MaxPool", ["c"], ["d"], name="pool", kernel_shape=[2, 2], strides=[2, 2])], {}),
    "Sigmoid": ([helper.make_node("Sigmoid", ["c"], ["d"], name="sigmoid")], {}),
    "LeakyRelu": ([helper.make_node("LeakyRelu", ["c"], ["d"], name="leaky", alpha=0.1)], {}),
    "AveragePool": ([helper.make_node("AveragePool", ["c"], ["d"], name="pool", kernel_shape=[3, 3])], {}),
    "GlobalAveragePool": ([helper.make_node("GlobalAveragePool", ["c"], ["d"], name="pool")], {}),
    "Softmax": ([helper.make_node("Softmax", ["c"], ["d"], name="softmax", axis=1)], {}),
    "Resize": (
        [helper.make_node("Resize", ["c", "", "scales"], ["d"], name="resize", mode="nearest")],
        {"scales": np.array([1, 1, 2, 2], np.float32)},
    ),
}


@pytest.mark.pairwise(strength=1)
@pytest.mark.parametrize("kind", ["u8 s8 channels", "s8 s8"])
@pytest.mark.parametrize("middle", MIDDLES)
def test_an_operator_on_codes_deployed_again_gives_the_same_codes(middle, kind, tmp_path):
    generator = torch.Generator().manual_seed(0)
    x, *batches = (torch.randn(1, 3, 8, 8, generator=generator) for _ in range(5))
    made = on_codes(network(tmp_path, *MIDDLES[middle]), batches, **KINDS[kind])
    prepared, again = redeployed(made, x, tmp_path)
    (expected,) = ran(made, x, signed_data=kind == "s8 s8")
    np.testing.assert_array_equal(ran(again, x)[0], expected)
    codes = [quantizer for quantizer in quantizers_of(prepared) if quantizer.role == "activation"]
    with torch.no_grad():  # lookup tables and sums of codes against float32: one code at a tie, which a product spreads
        step = float(codes[-1].qparams().scale)
        assert np.abs(prepared(x).numpy() - expected).max() <= 1.01 * step


def test_an_index_of_codes_is_that_of_the_numbers(tmp_path):
    middle = [
        helper.make_node("ArgMax", ["c"], ["index"], name="argmax", axis=1),
        helper.make_node("Cast", ["index"], ["real"], name="cast", to=TensorProto.FLOAT),
        helper.make_node("Add", ["c", "real"], ["d"], name="add"),
    ]
    generator = torch.Generator().manual_seed(0)
    x, *batches = (torch.randn(1, 3, 8, 8, generator=generator) for _ in range(5))
    made = on_codes(network(tmp_path, middle, {}), batches)
    assert np.array_equal(ran(redeployed(made, x, tmp_path)[1], x)[0], ran(made, x)[0])


def codes_model(nodes: list[onnx.NodeProto], held: dict[str, np.ndarray]) -> onnx.ModelProto:
    ports = [[helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 2, 4, 4])]]
    ports += [[helper.make_tensor_value_info("y", TensorProto.FLOAT, None)]]
    tensors = {"s": np.array(0.1, np.float32), "z": np.array(128, np.uint8), **held}
    graph = helper.make_graph(
        [
            helper.make_node("QuantizeLinear", ["x", "s", "z"], ["q"]),
            *nodes,
            helper.make_node("DequantizeLinear", ["moved", "s", "z"], ["y"]),
        ],
        "net",
        *ports,
        [numpy_helper.from_array(array, name) for name, array in tensors.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def test_interpolated_codes_are_cut_off_by_the_engine_and_rounded_by_us(tmp_path):
    resize = helper.make_node("Resize", ["q", "", "scales"], ["moved"], name="resize", mode="linear")
    model = codes_model([resize], {"scales": np.array([1, 1, 2, 2], np.float32)})
    onnx.save_model(model, tmp_path / "resize.onnx")
    x = torch.randn(1, 2, 4, 4, generator=torch.Generator().manual_seed(0))
    graph = load(model)
    on_grid = torch.fake_quantize_per_tensor_affine(x, 0.1, 128, 0, 255)
    off = (graph(on_grid) - torch.from_numpy(ran(tmp_path / "resize.onnx", x)[0])) / 0.1
    assert off.min() > -1e-4
    assert off.max() < 1.0


def test_codes_that_are_picked_are_codes_of_the_same_grid(tmp_path):
    pick = helper.make_node("GatherElements", ["q", "places"], ["moved"], name="pick", axis=3)
    model = codes_model([pick], {"places": np.array([[[[3, 0]] * 4] * 2], np.int64)})
    onnx.save_model(model, tmp_path / "pick.onnx")
    x = torch.randn(1, 2, 4, 4, generator=torch.Generator().manual_seed(0))
    on_grid = torch.fake_quantize_per_tensor_affine(x, 0.1, 128, 0, 255)
    np.testing.assert_allclose(load(model)(on_grid).numpy(), ran(tmp_path / "pick.onnx", x)[0], rtol=1e-6)


def test_codes_around_codes_are_zero_if_nothing_is_said(tmp_path):
    pad = helper.make_node("Pad", ["q", "pads"], ["moved"], name="pad")
    model = codes_model([pad], {"pads": INTS})
    onnx.save_model(model, tmp_path / "pad.onnx")
    x = torch.zeros(1, 2, 4, 4)
    found = load(model)(x)
    assert found.min() == pytest.approx(-12.8)
    np.testing.assert_allclose(found.numpy(), ran(tmp_path / "pad.onnx", x)[0])


def test_an_operator_on_codes_that_lacks_its_parts_is_refused():
    ports = [[helper.make_tensor_value_info(name, TensorProto.UINT8, [1, 1, 4, 4])] for name in "xy"]
    graph = helper.make_graph([helper.make_node("QLinearConv", ["x", "s"], ["y"], name="conv")], "net", *ports)
    with pytest.raises(OnnxError, match="operators on codes"):
        load(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8))

"""Every way ONNX Runtime multiplies with weights: the kernels differ with shapes, and without VNNI their saturation.

Weights use all of their range, so that on CPUs without VNNI pairs saturate everywhere.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import numpy_helper

from detent.targets.arithmetics import ARITHMETICS
from detent.twin import Twin
from tests.targets.onnxruntime.test_arithmetic import check, engine
from tests.twin.nets import Builder, Net, Style, T, conv, small_net

CONVOLUTIONS = {
    "3 channels": (3, 8, {}),
    "7x7 in steps": (3, 16, {"kernel": 7, "stride": 2}),
    "odd 1x1": (17, 9, {"kernel": 1}),
    "1x1 in steps": (4, 16, {"kernel": 1, "stride": 2}),
    "even kernel": (5, 7, {"kernel": 2}),
    "blocks": (32, 64, {}),
    "no block of outputs": (16, 20, {}),
    "odd in steps": (31, 33, {"stride": 2}),
    "dilated": (64, 32, {"dilation": 2}),
    "deep": (257, 16, {}),
    "two groups": (8, 8, {"group": 2}),
    "odd groups": (6, 9, {"group": 3}),
    "two outputs of a channel": (16, 32, {"group": 16}),
    "depthwise in blocks": (32, 32, {"group": 32}),
    "depthwise": (24, 24, {"group": 24}),
    "one channel": (1, 1, {}),
    "one input": (1, 16, {}),
}
STYLES = [Style(seed=1), Style("int8", seed=2), Style(per_channel=False, batch=1, seed=3), Style(bias="none", seed=4)]


@pytest.mark.pairwise(strength=1)
@pytest.mark.parametrize("style", STYLES, ids=str)
@pytest.mark.parametrize(("inputs", "outputs", "options"), CONVOLUTIONS.values(), ids=CONVOLUTIONS)
def test_convolutions(inputs: int, outputs: int, options: dict[str, int], style: Style, tmp_path: Path) -> None:
    b = Builder(style)
    b.output(conv(b, b.input("x", style.batch, inputs, 9, 8), outputs, **options))
    check(b.net(), tmp_path)


@pytest.mark.pairwise(strength=1)
@pytest.mark.parametrize("style", STYLES, ids=str)
@pytest.mark.parametrize(("rows", "inputs", "outputs"), [(1, 16, 8), (1, 65, 33), (7, 100, 100), (3, 515, 12)])
def test_linear_layers(rows: int, inputs: int, outputs: int, style: Style, tmp_path: Path) -> None:
    for kind in ("Gemm", "MatMul"):
        b = Builder(style)
        b.output(b.weighted(kind, b.input("x", rows, inputs), (inputs, outputs), axis=1))
        check(b.net(), tmp_path)


GEMMS = {
    "factor": {"alpha": 0.37},
    "factor of no bias": {"beta": 0.0},
    "across": {"transA": 1},
    "all": {"alpha": 2.5, "beta": 0.0, "transA": 1},
}


@pytest.mark.parametrize("attributes", GEMMS.values(), ids=GEMMS)
def test_matrix_products_with_factors(attributes: dict[str, float], tmp_path: Path) -> None:
    for style in (Style(bias="none", seed=1), Style("int8", bias="none", seed=2), Style(scales="tie", bias="none")):
        b = Builder(style)
        b.output(b.weighted("Gemm", b.input("x", 24, 24), (12, 24), axis=0, transB=1, **attributes))
        check(b.net(), tmp_path)


def test_a_factor_keeps_a_product_with_a_bias_in_float(tmp_path: Path) -> None:
    b = Builder(Style(seed=1))
    b.output(b.weighted("Gemm", b.input("x", 24, 24), (12, 24), axis=0, transB=1, alpha=0.37))
    check(b.net(), tmp_path)


def with_zero_points(net: Net) -> Net:
    """The same weights on grids with zero points of their own, one a channel."""
    random = np.random.default_rng(0)
    for tensor in net.model.graph.initializer:
        if tensor.name.endswith(".weight_zero_point"):
            zeros = random.integers(-40, 40, size=tuple(tensor.dims)).astype(np.int8)
            tensor.CopyFrom(numpy_helper.from_array(zeros, tensor.name))
    return net


@pytest.mark.parametrize("kind", ["conv", "conv_1x1", "conv_grouped", "depthwise", "gemm", "matmul"])
def test_weights_multiply_with_their_zero_points(kind: str, tmp_path: Path) -> None:
    for style in (Style(seed=1), Style("int8", seed=2), Style(per_channel=False, seed=3)):
        check(with_zero_points(small_net(kind, style)), tmp_path)


def test_an_identity_is_no_obstacle(tmp_path: Path) -> None:
    for kind in ("Identity", "Dropout"):
        b = Builder(Style(seed=1))
        x = b.input("x", 2, 16, 6, 6)
        b.output(conv(b, b.on_the_grid_of(x, b.float_op(kind, x)), 8))
        check(b.net(), tmp_path)


def _product(kind: str, **attributes: int) -> Callable[[Builder], T]:
    def build(b: Builder) -> T:
        x, y = b.input("x", 6, 33), b.input("y", *((12, 33) if attributes.get("transB") else (33, 12)))
        return b.quantized(b.float_op(kind, x, y, **attributes))

    return build


PRODUCTS = {"matmul": _product("MatMul"), "gemm": _product("Gemm"), "gemm across": _product("Gemm", transB=1)}


@pytest.mark.parametrize("signed", ["x", "y", "both", "none"])
@pytest.mark.parametrize("kind", PRODUCTS)
def test_products_of_two_activations(kind: str, signed: str) -> None:
    """On x86 what several operations read stays signed, and an unsigned matrix times a signed one saturates."""
    for style in (Style(seed=1), Style("int8", seed=2)):
        if (kind, signed, style.activation) == ("gemm across", "x", "int8"):
            continue  # ONNX Runtime 1.31 makes uint8 of y, and then fails to dequantize it
        b = Builder(style)
        b.output(PRODUCTS[kind](b))
        for name in {"both": "xy", "none": ""}.get(signed, signed):
            too = b.node("Relu", [f"{name}_dequantized"], f"{name}_too")
            b.outputs.append(onnx.helper.make_tensor_value_info(too, onnx.TensorProto.FLOAT, b.feeds[name].shape))
        net = b.net()
        computed = next(iter(Twin(net.model, ARITHMETICS["onnxruntime"]()).run(net.feeds).values()))
        assert np.array_equal(computed, engine(net))


@pytest.mark.parametrize("kind", ["conv", "conv_5x5_deep", "conv_3d", "depthwise", "gemm", "matmul", "matmul_dynamic"])
def test_several_threads_give_the_same(kind: str) -> None:
    net = small_net(kind, Style(seed=1, batch=3))
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 3
    session = onnxruntime.InferenceSession(net.model.SerializeToString(), options, ["CPUExecutionProvider"])
    assert np.array_equal(session.run(None, net.feeds)[0], engine(net))


@pytest.mark.parametrize("kind", ["conv", "conv_1x1", "conv_grouped", "conv_1d", "conv_3d", "gemm", "matmul"])
@pytest.mark.parametrize("most", [63, 64])
def test_weights_of_seven_bits_are_the_same_on_every_cpu(kind: str, most: int) -> None:
    """255 * (64 + 64) is 32,640 and fits 16 bits."""
    net = small_net(kind, Style(weight_range=most, seed=5))
    expected = engine(net)
    for cpu in ("avx2", "avx512", "avx_vnni", "vnni", "amx"):
        (computed,) = Twin(net.model, ARITHMETICS["onnxruntime"](cpu)).run(net.feeds).values()
        assert np.array_equal(computed, expected)

"""The twin computes what ncnn computes, bit for bit, operation by operation and for whole networks."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from detent.ir import Encoding, read_qdq
from detent.targets.ncnn.arithmetic import Ncnn
from detent.targets.ncnn.file import ncnn_model
from detent.twin import Twin
from tests.targets.ncnn.nets import followed, ncnn_form
from tests.twin.nets import Builder, Net, Style, conv, mobilenet, resnet18

pytest.importorskip("ncnn", reason="needs the extra `ncnn`")
Engine = pytest.importorskip("detent.targets.ncnn.engine").Ncnn

SCALES = ["random", "tie", "pot"]
GRID = Encoding(np.float32(0.5), np.int64(0), "int8", qmin=-127, qmax=127)


def style(scales: str, seed: int = 0, batch: int = 2) -> Style:
    bias = ("int32", "float", "none")[seed % 3]
    return Style(activation="int8", symmetric=True, scales=scales, bias=bias, batch=batch, seed=seed)  # type: ignore[arg-type]


def differences(net: Net) -> dict[str, int]:
    """How many numbers of each tensor, and of each output, the engine and the twin do not share; none is left out."""
    graph = read_qdq(net.model)
    engine = Engine(ncnn_model(net.model), graph, packing=False)
    twin = Twin(graph, Ncnn())
    computed, simulated = engine.tensors(net.feeds), twin.tensors(net.feeds)
    found = {
        f"output {name}": _unlike(engine.run(net.feeds)[name], value) for name, value in twin.run(net.feeds).items()
    }
    for name in computed.keys() & simulated.keys():
        real = computed[name]
        if (
            real.dtype != simulated[name].dtype
        ):  # ncnn keeps floats where the network has a grid: quantize them as it does
            encoding = graph.grid_of(name)
            assert encoding is not None
            real = Ncnn().quantize(torch.from_numpy(real), encoding).numpy()
        found[name] = _unlike(real, simulated[name])
    return {name: count for name, count in found.items() if count}


def _unlike(real: np.ndarray, simulated: np.ndarray) -> int:
    return int((real.reshape(simulated.shape) != simulated).sum())


def test_codes_round_half_away_and_stop_at_127() -> None:
    values = torch.tensor([[0.25, -0.25, 0.24, 0.75, 63.4, 63.5, -1000.0, 0.0]])
    assert Ncnn().quantize(values, GRID).tolist() == [[1, -1, 0, 2, 127, 127, -127, 0]]


def test_the_float_below_half_is_rounded_up_except_in_a_last_incomplete_four() -> None:
    below = float(np.nextafter(np.float32(0.5), np.float32(0)))
    unit = Encoding(np.float32(1), np.int64(0), "int8", qmin=-127, qmax=127)
    assert Ncnn().quantize(torch.full((1, 7), below), unit).tolist() == [[1, 1, 1, 1, 0, 0, 0]]
    plane = Ncnn().quantize(torch.full((1, 1, 3, 3), -below), unit)
    assert plane.flatten().tolist() == [-1] * 8 + [0]


def test_the_engine_rounds_that_float_so_too() -> None:
    builder = Builder(Style(activation="int8", symmetric=True, scales="pot", bias="none", batch=1))
    builder.output(conv(builder, builder.input("x", 1, 3, 5, 7, spread=1.0), 4, 1))
    net = ncnn_form(builder.net())
    below = np.nextafter(np.float32(0.5), np.float32(0))
    values = np.resize(np.array([below, -below, 0.5, -0.5, 1.5, 2.4999998], np.float32), (1, 3, 5, 7))
    assert differences(Net(net.model, {"x": values})) == {}


@pytest.mark.pairwise(strength=1)
@pytest.mark.parametrize("scales", SCALES)
@pytest.mark.parametrize(
    "kind",
    [
        *(
            "conv",
            "conv_relu",
            "conv_relu6",
            "conv_1x1",
            "conv_strided",
            "conv_dilated",
            "conv_grouped",
            "conv_5x5_deep",
        ),
        *("conv_1d", "depthwise", "depthwise_relu", "gemm", "gemm_relu", "matmul", "float_add", "residual"),
        *("add", "add_relu", "mul", "sub", "concat", "avgpool", "avgpool_padded", "avgpool_padded_counted", "maxpool"),
        *("gap", "mean", "resize_nearest", "relu", "clip", "hardswish", "hardsigmoid", "leaky_relu", "pad", "moves"),
        *("depthwise_13", "maxpool_ceil"),
    ],
)
def test_an_operation_and_the_layer_behind_it_are_equal(kind: str, scales: str) -> None:
    assert differences(followed(kind, style(scales, seed=SCALES.index(scales)))) == {}


@pytest.mark.parametrize("then", [None, "Relu", "Relu6", "LeakyRelu", "HardSwish"])
@pytest.mark.parametrize(("kernel", "stride", "dilation"), [(1, 1, 1), (3, 1, 1), (3, 2, 1), (3, 1, 2), (5, 2, 1)])
def test_depthwise_kernels_round_the_product_or_do_not(
    kernel: int, stride: int, dilation: int, then: str | None
) -> None:
    for seed in range(2):
        builder = Builder(Style(activation="int8", symmetric=True, scales="tie", batch=4, seed=seed))
        x = builder.input("x", 4, 16, 13, 13)
        x = conv(builder, x, 16, kernel, stride=stride, dilation=dilation, group=16, then=then)
        builder.output(conv(builder, x, 8, 1))
        assert differences(ncnn_form(builder.net())) == {}


@pytest.mark.parametrize(("kernel", "alike"), [(3, False), (5, True)])
def test_the_fast_depthwise_kernel_rounds_twice_with_avx2(kernel: int, alike: bool) -> None:
    builder = Builder(style("random"))
    builder.output(conv(builder, builder.input("x", 2, 16, 13, 13), 16, kernel, group=16))
    net = ncnn_form(builder.net())
    graph = read_qdq(net.model)
    short, long = (Twin(graph, Ncnn(cpu)).run(net.feeds) for cpu in ("avx2", "vnni"))
    assert all(np.array_equal(value, long[name]) for name, value in short.items()) == alike


@pytest.mark.parametrize(("kernel", "stride", "pads"), [([2, 3], [2, 2], [1, 0, 1, 0]), ([3, 2], [1, 2], [0, 1, 0, 1])])
def test_an_average_adds_up_in_order(kernel: list[int], stride: list[int], pads: list[int]) -> None:
    """Windows of 2 to 6 numbers, of an image that is transposed in memory."""
    builder = Builder(style("random", batch=4))
    x = builder.float_op("Transpose", builder.input("x", 4, 9, 7, 5), perm=[0, 2, 1, 3])
    x = builder.float_op("AveragePool", x, kernel_shape=kernel, strides=stride, pads=pads)
    builder.output(conv(builder, builder.quantized(x), 8, 1))
    assert differences(ncnn_form(builder.net())) == {}


@pytest.mark.parametrize(
    "scales", [pytest.param(each, marks=[] if each == "tie" else pytest.mark.full) for each in SCALES]
)
def test_resnet18_is_equal_in_every_tensor(scales: str) -> None:
    assert differences(ncnn_form(resnet18(style(scales, batch=1), size=96))) == {}


@pytest.mark.parametrize("scales", SCALES)
def test_a_mobile_network_is_equal_in_every_tensor(scales: str) -> None:
    assert differences(ncnn_form(mobilenet(style(scales, seed=1, batch=1)))) == {}


def test_functions_that_ncnn_approximates_are_off_by_a_few_units_in_the_last_place() -> None:
    """What the claim says: 1e-6 is 8 units of a float32 near 1."""
    builder = Builder(style("random"))
    x = builder.input("x", 2, 8, 9, 9)
    builder.output(builder.float_op("Sigmoid", builder.float_op("Tanh", x)))
    net = ncnn_form(builder.net())
    graph = read_qdq(net.model)
    real = Engine(ncnn_model(net.model), graph, packing=False).run(net.feeds)
    simulated = Twin(graph, Ncnn()).run(net.feeds)
    assert "few units" in Ncnn.claim
    for name, value in simulated.items():
        np.testing.assert_allclose(real[name], value, rtol=0, atol=1e-6)

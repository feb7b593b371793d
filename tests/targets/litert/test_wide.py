"""16-bit activations and 4-bit weights on LiteRT: the twin against the engine, code by code."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from detent.errors import DeployError
from detent.ir import Encoding, Op, read_qdq
from detent.targets.litert.arithmetic.gemmlowp import wide_multiply
from detent.targets.litert.arithmetic.reference import TfliteReference
from detent.targets.litert.arithmetic.ruy import Ruy
from detent.targets.litert.arithmetic.wide import WideKernels
from detent.targets.litert.arithmetic.wide_tables import EXPONENTIAL, RECIPROCAL, wide_table
from detent.targets.litert.arithmetic.xnnpack import Xnnpack
from detent.targets.litert.engine import Kernels, LiteRT
from detent.targets.litert.file import model_to_tflite, network_of, read_tflite
from detent.twin import Twin
from tests.targets.litert.nets import lite_net
from tests.targets.litert.proof import KINDS, differing
from tests.twin.builder import Builder, Net, Style, T
from tests.twin.nets import mobilenet, resnet18
from tests.twin.random_nets import random_net

IN_FLOAT = ("clip", "hardswish", "pixel_shuffle")
"""What LiteRT has no 16-bit kernel for; `clip` has another grid behind it."""

WIDE = (
    Style(activation="int16", symmetric=True, scales="tie", seed=1),
    Style(activation="int16", symmetric=True, scales="pot", seed=2, per_channel=False, bias="none", batch=1),
    Style(activation="int16", symmetric=True, scales="random", seed=3, bias="float", batch=3),
)

WEIGHTED = (
    *("conv", "conv_relu", "conv_1x1", "conv_strided", "conv_dilated", "conv_grouped", "conv_1d", "depthwise"),
    *("depthwise_13", "depthwise_multiplier", "conv_transpose", "gemm", "gemm_relu", "matmul", "flatten", "residual"),
)

NARROW = (
    Style(activation="uint8", weight="int4", weight_range=7, scales="tie", seed=1),
    Style(activation="int8", weight="int4", weight_range=7, scales="random", seed=2, per_channel=False),
    Style(activation="int16", symmetric=True, weight="int4", weight_range=7, scales="tie", seed=3),
)


def engine_of(net: Net, kernels: Kernels = "xnnpack") -> LiteRT:
    return LiteRT(model_to_tflite(net.model), graph=read_qdq(net.model), kernels=kernels)


@pytest.mark.pairwise(strength=1)
@pytest.mark.parametrize("style", WIDE, ids=str)
@pytest.mark.parametrize("kind", [kind for kind in [*KINDS, "matmul_dynamic"] if kind not in IN_FLOAT])
def test_activations_of_16_bits(kind: str, style: Style) -> None:
    net = lite_net(kind, style)
    assert {placed.ran_as for placed in engine_of(net).explain()} <= {"integer", "folded"}
    assert differing(net, Xnnpack(), "xnnpack")[0] == 0
    assert differing(net, TfliteReference(), "reference")[0] == 0


@pytest.mark.parametrize("short", [True, False])
def test_a_file_says_how_convolutions_add_up(short: bool) -> None:
    """In 32 bits or in 64: another kernel, and other codes on ties and far from zero."""
    net = lite_net("conv", WIDE[0])
    content = model_to_tflite(net.model, short_sums=short)
    graph = network_of(read_tflite(content))
    for kernels, arithmetic in (("xnnpack", Xnnpack()), ("reference", TfliteReference())):
        (theirs,) = LiteRT(content, kernels=kernels).run(net.feeds).values()  # type: ignore[arg-type]
        (ours,) = Twin(graph, arithmetic).run(net.feeds).values()
        assert (theirs == ours).all()
        (other,) = LiteRT(model_to_tflite(net.model, short_sums=not short)).run(net.feeds).values()
        assert (theirs != other).any()


@pytest.mark.pairwise(strength=1)
@pytest.mark.parametrize("style", NARROW, ids=str)
@pytest.mark.parametrize("kind", WEIGHTED)
def test_weights_of_4_bits(kind: str, style: Style) -> None:
    net = lite_net(kind, style)
    assert differing(net, Xnnpack(), "xnnpack")[0] == 0
    assert differing(net, TfliteReference(), "reference")[0] == 0


@pytest.mark.pairwise(strength=1)
@pytest.mark.parametrize(
    "seeds", [pytest.param(range(4), id="few"), pytest.param(range(4, 24), id="many", marks=pytest.mark.full)]
)
@pytest.mark.parametrize("kernels", ["xnnpack", "builtin", "reference"])
@pytest.mark.parametrize(
    "style",
    [
        {"activation": "int16", "symmetric": True},
        {"activation": "int16", "symmetric": True, "weight": "int4", "weight_range": 7},
        {"activation": "int8", "weight": "int4", "weight_range": 7},
    ],
    ids=["w8a16", "w4a16", "w4a8"],
)
def test_random_nets(style: dict[str, object], kernels: Kernels, seeds: range) -> None:
    arithmetic = {"xnnpack": Xnnpack(), "builtin": Ruy(), "reference": TfliteReference()}[kernels]
    kinds = [*["conv"] * 6, "average", "max", "global", "add", "mul", "concat", "linear", "relu", "leaky"]
    compared = 0
    for seed in seeds:
        net = random_net(seed, kinds, **style)
        try:
            model_to_tflite(net.model)
        except DeployError:
            continue  # a padding that LiteRT's average pool does not have
        compared += 1
        assert differing(net, arithmetic, kernels)[0] == 0, seed
    assert compared >= len(seeds) * 3 / 4


@pytest.mark.parametrize(
    ("network", "style"),
    [(resnet18, WIDE[0]), *((mobilenet, style) for style in (WIDE[0], NARROW[0], NARROW[2]))],
    ids=["resnet18-w8a16", "mobilenet-w8a16", "mobilenet-w4a8", "mobilenet-w4a16"],
)
def test_every_tensor_of_a_whole_network(network, style: Style) -> None:
    net = network(style, size=32)
    theirs, ours = engine_of(net).tensors(net.feeds), Twin(net.model, Xnnpack()).tensors(net.feeds)
    assert len(ours) > 20
    assert theirs.keys() >= ours.keys()
    assert {name for name in ours if (ours[name] != theirs[name]).any()} == set()
    assert {array.dtype for array in ours.values()} == {np.dtype(style.activation)}


@pytest.mark.parametrize("kind", IN_FLOAT)
def test_without_a_kernel_it_runs_in_float(kind: str) -> None:
    """The last numbers of float functions differ, so that one code in a thousand may lie on the other side of a tie."""
    net = lite_net(kind, WIDE[2])
    placed = [placement for placement in engine_of(net).explain() if placement.ran_as == "float"]
    assert len(placed) == 1
    wrong, total = differing(net, Xnnpack(), "xnnpack")
    assert wrong <= total / 1000


def sigmoid_of(scale: float, kind: str = "Sigmoid") -> Net:
    builder = Builder(Style(activation="int16", symmetric=True))
    made = builder.float_op(kind, builder.input("x", 2, 8, 4, 4, spread=scale))
    builder.output(builder.on_grid(made.name, made.value, np.float32(2**-15), 0))
    return builder.net()


@pytest.mark.parametrize("scale", [0.0001, 0.0003, 0.001, 0.1])
@pytest.mark.parametrize("kind", ["Sigmoid", "Tanh", "Gelu", "LeakyRelu"])
def test_functions_of_every_code(kind: str, scale: float) -> None:
    builder = Builder(Style(activation="int16", symmetric=True))
    made = builder.float_op(kind, builder.input("x", 1, 16, 64, 64, spread=scale))
    prescribed = kind in ("Sigmoid", "Tanh")
    builder.output(builder.on_grid(made.name, made.value, np.float32(2**-15 if prescribed else 0.7 * scale), 0))
    codes = np.arange(-(2**15), 2**15).reshape(1, 16, 64, 64)
    net = Net(builder.net().model, {"x": (codes * np.float32(scale)).astype(np.float32)})
    for kernels, arithmetic in (("xnnpack", Xnnpack()), ("reference", TfliteReference())):
        assert differing(net, arithmetic, kernels) == (0, 2**16)  # type: ignore[arg-type]


@pytest.mark.parametrize(("kind", "power"), [("Sigmoid", -12), ("Tanh", -12), ("Tanh", -11)])
def test_where_the_optimized_kernels_are_coarse_it_runs_in_float(kind: str, power: int) -> None:
    """LiteRT takes scales within about 0.07 % of these for the powers themselves, and computes up to 11 steps off."""
    for near, ran_as in ((1.0, "float"), (1.0005, "float"), (0.9995, "float"), (1.003, "integer"), (0.997, "integer")):
        net = sigmoid_of(near * 2**power, kind)
        assert [placement.ran_as for placement in engine_of(net).explain()] == [ran_as]
        if ran_as == "integer":
            assert differing(net, Xnnpack(), "xnnpack")[0] == 0


def test_a_sum_on_a_grid_that_ends_litert_runs_in_float() -> None:
    """LiteRT ends the process where twice the coarser scale is 2**15 times that of the sum."""
    for factor, ran_as in ((2.0**-15, "float"), (2.0**-14, "float"), (2.0**-13, "integer")):
        builder = Builder(Style(activation="int16", symmetric=True, batch=1))
        a, b = (builder.input(name, 1, 4, 2, 2, spread=0.5) for name in ("a", "b"))
        made = builder.float_op("Add", a, b)
        builder.output(builder.on_grid(made.name, made.value, np.float32(0.5 * factor), 0))
        net = builder.net()
        assert [placement.ran_as for placement in engine_of(net).explain()] == [ran_as]
        assert differing(net, Xnnpack(), "xnnpack")[0] == 0


def test_a_mean_of_too_many_codes_runs_in_float() -> None:
    """65,536 codes of -32768 are -2**31, and one more does not fit."""
    for rows, ran_as in ((256, "float"), (255, "integer")):
        builder = Builder(Style(activation="int16", symmetric=True, batch=1))
        x = builder.input("x", 1, 1, rows, 256, spread=0.01)
        builder.output(builder.quantized(builder.float_op("GlobalAveragePool", x)))
        net = builder.net()
        assert [placement.ran_as for placement in engine_of(net).explain()] == [ran_as]
        steps = {step.ops[0].type: step.ran_as for step in Twin(net.model, Xnnpack()).steps if step.ops}
        assert steps == {"GlobalAveragePool": ran_as}


def _between_widths(builder: Builder) -> T:
    """A convolution from 8 bits to 16: the grid behind it is put there by hand."""
    x = builder.input("x", 2, 8, 6, 6)
    made = builder.weighted("Conv", x, (8, 8, 1, 1), axis=0, kernel_shape=[1, 1], grid=False)
    scale = builder.constant("wide_scale", np.asarray(0.001, np.float32))
    zero = builder.constant("wide_zero_point", np.asarray(0, np.int16))
    builder.node("QuantizeLinear", [made.read, scale, zero], "wide_quantized")
    builder.node("DequantizeLinear", ["wide_quantized", scale, zero], "wide")
    return T("wide", made.value)


@pytest.mark.parametrize(("before", "behind"), [("int8", "int16"), ("uint8", "int16"), ("int16", "int8")])
@pytest.mark.parametrize("kernels", ["xnnpack", "builtin", "reference"])
def test_codes_go_from_one_width_to_the_other(before: str, behind: str, kernels: Kernels) -> None:
    """What was moved on one grid is read on another."""
    builder = Builder(Style(activation=before, symmetric=before == "int16", seed=6))
    x = builder.input("x", 2, 8, 6, 6, spread={"int16": 0.0001}.get(before, 0.02))
    moved = builder.float_op("MaxPool", x, kernel_shape=[2, 2], strides=[2, 2])
    scale = builder.constant("other_scale", np.asarray({"int16": 0.00013}.get(behind, 0.027), np.float32))
    zero = builder.constant("other_zero_point", np.asarray({"int8": 5}.get(behind, 0), behind))
    builder.node("QuantizeLinear", [moved.name, scale, zero], "other_quantized")
    builder.node("DequantizeLinear", ["other_quantized", scale, zero], "other")
    builder.output(T("other", moved.value))
    arithmetic = {"xnnpack": Xnnpack(), "builtin": Ruy(), "reference": TfliteReference()}[kernels]
    assert differing(builder.net(), arithmetic, kernels) == (0, 2 * 8 * 3 * 3)


def test_between_two_widths_it_runs_in_float() -> None:
    builder = Builder(Style(seed=4))
    builder.output(_between_widths(builder))
    net = builder.net()
    assert [placement.ran_as for placement in engine_of(net).explain()] == ["float"]
    assert [step.ran_as for step in Twin(net.model, Xnnpack()).steps if step.ops] == ["float"]


def test_which_kernels_take_weights_of_4_bits() -> None:
    """XNNPACK: linear layers with an even number of inputs. LiteRT's own: others, and every convolution."""
    whys = {}
    for kind in ("conv", "depthwise", "conv_transpose", "gemm"):
        net = lite_net(kind, NARROW[0])
        held = {tensor.dtype for tensor in read_tflite(model_to_tflite(net.model)).tensors if tensor.data is not None}
        whys[kind] = ("int4" in held, [placed.why != "" for placed in engine_of(net).explain()])
    assert whys == {
        "conv": (True, [True]),
        "depthwise": (True, [True]),
        "conv_transpose": (False, [False]),
        "gemm": (True, [False]),
    }
    builder = Builder(NARROW[0])
    x = builder.input("x", 4, 17)
    builder.output(builder.weighted("Gemm", x, (8, 17), axis=0, transB=1))
    (odd,) = engine_of(builder.net()).explain()
    assert odd.why == "in LiteRT's own kernel, not XNNPACK's"
    assert differing(builder.net(), Xnnpack(), "xnnpack")[0] == 0


def test_the_multiplier_has_16_bits() -> None:
    """0.3 as 19661 / 2**16: 10 * 0.3 is a little more than 3; -5 / 2 goes up."""
    integer, shift = 1288490189, -1  # 0.3
    assert wide_multiply(np.array([10, 100_000, -100_000]), integer, shift).tolist() == [3, 30_000, -30_000]
    assert wide_multiply(np.array([5, -5, 2**40]), 2**30, 0).tolist() == [3, -2, 2**39]
    assert wide_multiply(np.array([32768]), 2**31 - 1, 0).tolist() == [32767]


def test_tables() -> None:
    grid = Encoding(np.float32(2**-15), np.int64(0), "int16")
    sigmoid = wide_table(Op("Sigmoid", "", (), ()), Encoding(np.float32(0.001), np.int64(0), "int16"), grid)
    assert sigmoid is not None
    assert (len(sigmoid), sigmoid[32768], sigmoid[0], sigmoid[-1]) == (65536, 16384, 1, 32767)
    assert (np.diff(sigmoid) >= 0).all()
    exact = 32768 / (1 + np.exp(-np.arange(-32768, 32768) * 0.001))
    assert np.abs(sigmoid - exact).max() < 2
    assert (EXPONENTIAL[-1], EXPONENTIAL[0], RECIPROCAL[0], RECIPROCAL[-1]) == (32767, 2, 32767, 16384)


def test_softmax_of_equal_numbers() -> None:
    grid = Encoding(np.float32(2**-15), np.int64(0), "int16")
    kernel = WideKernels().softmax(Encoding(np.float32(0.001), np.int64(0), "int16"), grid)
    assert kernel(torch.full((1, 4), 7.0)).tolist() == [[8192.0] * 4]

"""The arithmetic `openvino` against OpenVINO itself, on the IR that Detent writes."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
import torch
from onnx import parser

import detent
from detent.ir import Encoding, Operand, read_qdq
from detent.recipes import Recipe
from detent.targets.openvino.arithmetic.openvino import OpenVino
from detent.targets.openvino.arithmetic.ranges import propagate_grids
from detent.targets.openvino.engine import OpenVino as Engine
from detent.twin import Twin
from tests.models import MODELS
from tests.targets.openvino.proof import INT8, STYLES, UINT8, distances, package
from tests.twin.nets import SMALL, Builder, Style, T, add, conv, mobilenet, resnet18, small_net

pytest.importorskip("openvino", reason="pip install 'detent[openvino]'")

CASES = [
    pytest.param(UINT8, "tie", id="uint8-tie"),
    pytest.param(UINT8, "random", id="uint8-random"),
    pytest.param(INT8, "tie", id="int8-symmetric-tie"),
]
# Equal on ties too.
EQUAL = [
    "conv", "conv_relu", "conv_relu6", "conv_1x1", "conv_strided", "conv_dilated", "conv_grouped", "conv_5x5_deep",
    "conv_1d", "conv_3d", "conv_same", "conv_uneven", "depthwise", "depthwise_relu", "matmul", "matmul_2d",
    "gemm_float", "matmul_float", "maxpool", "resize_nearest", "pad", "moves", "depth_to_space", "conv_then_pool",
    "reshape_then_gemm", "requantized", "sub", "add", "add_relu", "float_add", "residual", "split", "avgpool",
    "avgpool_padded", "gap", "sigmoid", "tanh", "hardswish", "elu", "leaky_relu", "layernorm", "concat", "concat_13",
    "relu", "clip", "gemm", "gemm_relu", "mul", "mul_relu", "add_channels",
]  # fmt: skip
# Of these a few results on a tie fall to the other side.
NEARLY = ["conv_transpose", "matmul_dynamic", "resize_linear", "branches"]


@pytest.mark.pairwise(strength=1)
@pytest.mark.parametrize(("style", "scales"), CASES)
@pytest.mark.parametrize("kind", EQUAL)
def test_equal(kind, scales, style, tmp_path):
    assert not distances(small_net(kind, Style(scales=scales, seed=7, **style)), tmp_path).any()


@pytest.mark.pairwise(strength=1)
@pytest.mark.parametrize(("style", "scales"), CASES)
@pytest.mark.parametrize("kind", NEARLY)
def test_within_one_lsb_on_ties(kind, scales, style, tmp_path):
    found = distances(small_net(kind, Style(scales=scales, seed=2, **style)), tmp_path)
    assert found.max() <= 1
    # At most 1 in 12 in nets that consist of ties; hardly any elsewhere (bilinear interpolation has ties of its own).
    most = {"tie": 1 / 12, "random": 1 / 25 if kind == "resize_linear" else 1e-3}[scales]
    assert np.count_nonzero(found) <= most * found.size


@pytest.mark.few(12)
@pytest.mark.parametrize("kind", [*EQUAL, *NEARLY])
def test_equal_with_powers_of_two(kind, tmp_path):
    style = INT8 if len(kind) % 2 else UINT8
    assert not distances(small_net(kind, Style(scales="pot", seed=2, **style)), tmp_path).any()


@pytest.mark.parametrize("seed", [1, 14])
def test_what_the_network_gives_on_a_grid_of_step_1_is_rounded_without_its_zero_point(seed, tmp_path):
    """In both nets the zero point is odd and a result lies on a tie: with it, that goes to the other side."""
    net = small_net("conv_5x5_deep", Style(scales="pot", seed=seed))
    grid = package(net, tmp_path).graph.outputs[0].read.encoding
    assert grid.scale == 1
    assert grid.zero_point % 2 == 1
    assert not distances(net, tmp_path).any()


def float_residue(b: Builder, source: str, between: str | None) -> T:
    """conv + residue, where no grid is behind the convolution; every hundredth sum or so is a tie."""
    x = b.input("x", b.style.batch, 16, 10, 10)
    made = conv(b, x, 16, grid=False)
    held = next(each for each in b.initializers if each.name.endswith("weight_scale"))
    unit = float(x.scale) * float(onnx.numpy_helper.to_array(held))
    if between == "Clip":
        bounds = {"low": np.array(-300.3 * unit, np.float32), "high": np.array(400.7 * unit, np.float32)}
        made = b.float_op("Clip", made, "low", "high", constants=bounds)
    elif between:
        made = b.float_op(between, made)
    y = b.input("y", b.style.batch, 16, 10, 10, spread=unit * 81)
    if source == "convolution":
        y = conv(b, y, 16, 1)
    elif source == "pool":
        y = b.quantized(b.float_op("MaxPool", y, kernel_shape=[3, 3], pads=[1] * 4), like=y)
    return b.quantized(b.float_op("Add", made, y), unit=unit)


@pytest.mark.pairwise
@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize(
    ("bias", "between"), [("int32", None), ("none", None), ("int32", "Relu"), ("none", "Relu"), ("int32", "Clip")]
)
@pytest.mark.parametrize("source", ["convolution", "pool", "input"])
def test_a_convolution_that_is_added_in_float(source, bias, between, style, tmp_path):
    for seed in range(2):
        options = {"scales": "tie", "per_channel": False, "weight_range": 20, "batch": 8, "bias": bias, "seed": seed}
        b = Builder(Style(**options, **style))
        b.output(float_residue(b, source, between))
        net = b.net()
        (ran,) = [step for step in Twin(net.model, OpenVino()).steps if "Add" in [op.type for op in step.ops]]
        assert [op.type for op in ran.ops] == [each for each in ("Conv", between, "Add") if each]
        assert not distances(net, tmp_path).any()


@pytest.mark.parametrize(("bias", "style"), [("int32", UINT8), ("none", INT8)], ids=["bias", "no-bias-int8"])
def test_a_residual_block_is_added_by_a_kernel_of_its_own(bias, style, tmp_path):
    """The residue comes out of a convolution, but the block's first convolution reads it too: one sum of these nets is
    on a tie that a convolution with the add inside of it would round to the other side."""
    b = Builder(Style(scales="tie", per_channel=False, weight_range=20, batch=8, bias=bias, seed=4, **style))
    y = conv(b, b.input("x", b.style.batch, 16, 10, 10), 16, 1)
    inner = conv(b, y, 16)
    made = conv(b, inner, 16, grid=False)
    held = [each for each in b.initializers if each.name.endswith("weight_scale")][-1]
    unit = float(inner.scale) * float(onnx.numpy_helper.to_array(held))
    b.output(b.quantized(b.float_op("Add", made, y), unit=unit))
    assert not distances(b.net(), tmp_path).any()


@pytest.mark.parametrize("style", [*STYLES, pytest.param({"activation": "uint8", "symmetric": True}, id="from-0")])
@pytest.mark.parametrize("shared", ["x", "y", "both"])
def test_which_summand_is_moved_depends_on_who_else_reads_it(shared, style, tmp_path):
    b = Builder(Style(scales="tie", seed=3, **style))
    x, y = b.input("x", 2, 16, 10, 10), b.input("y", 2, 16, 10, 10, spread=0.031)
    b.output(add(b, x, y))
    for each in (x, y):
        if shared in (each.name, "both"):
            b.output(conv(b, each, 4, 1))
    assert not distances(b.net(), tmp_path).any()


@pytest.mark.parametrize("style", STYLES)
def test_without_a_bias_the_range_is_divided_by_the_scale(style, tmp_path):
    for kind in ("conv", "conv_relu", "conv_1x1", "depthwise"):
        assert not distances(small_net(kind, Style(scales="tie", seed=3, bias="none", **style)), tmp_path).any()


def of_convolution(b: Builder, *, between: str | None, bounds: tuple[float, float], kind: str, swapped: bool) -> T:
    """A convolution, perhaps clipped, on a grid, and another activation that is added or subtracted."""
    x, y = b.input("x", 2, 16, 6, 6), b.input("y", 2, 16, 6, 6, spread=2.0**-5)
    made = conv(b, x, 16, grid=False)
    if between == "Clip":
        low, high = (np.array(bound, np.float32) for bound in bounds)
        made = b.float_op("Clip", made, "low", "high", constants={"low": low, "high": high})
    elif between:
        made = b.float_op(between, made)
    at_zero = between == "Relu" or b.style.symmetric
    made = b.on_grid(made.name, made.value, np.float32(2.0**-5), 0 if at_zero else 120)
    return b.quantized(b.float_op(kind, *((y, made) if swapped else (made, y))))


@pytest.mark.pairwise
@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("between", [None, "Relu", "Clip"])
@pytest.mark.parametrize(("kind", "swapped"), [("Add", True), ("Sub", False), ("Sub", True)])
def test_a_convolution_is_not_rounded_before_a_sum_or_a_difference(kind, swapped, between, style, tmp_path):
    """Nor where it is clipped, unless a ReLU is left before a grid that does not begin at zero. Taken for rounded, up
    to 157 of these 1152 codes differ."""
    for bounds in ((-2.0, 2.0), (-1.03, 2.53)):
        b = Builder(Style(scales="pot", seed=0, **style))
        b.output(of_convolution(b, between=between, bounds=bounds, kind=kind, swapped=swapped))
        assert not distances(b.net(), tmp_path).any()


def scaled_branch(b: Builder, factor: float, *, swapped: bool) -> T:
    """A convolution on a grid, times a constant, on the grid of the same codes, and an activation that is added."""
    x, y = b.input("x", 2, 16, 6, 6), b.input("y", 2, 16, 6, 6)
    made = conv(b, x, 16)
    assert made.scale is not None
    product = b.float_op("Mul", made, "factor", constants={"factor": np.array(factor, np.float32)})
    scale = np.float32(made.scale) * np.float32(factor)
    scaled = b.on_grid(product.name, product.value, scale, made.zero_point)
    return b.quantized(b.float_op("Add", *((y, scaled) if swapped else (scaled, y))))


@pytest.mark.pairwise
@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("factor", [0.1, 0.5, 2.7])
@pytest.mark.parametrize("swapped", [False, True])
def test_a_convolution_times_a_constant_is_not_rounded_before_a_sum(swapped, factor, style, tmp_path):
    """As in residual blocks of super-resolution: `x + 0.1 * conv(...)`."""
    for seed in range(3):
        b = Builder(Style(scales="random", seed=seed, **style))
        b.output(scaled_branch(b, factor, swapped=swapped))
        net = b.net()
        assert ["Conv", "Mul", "Add"] in [[op.type for op in step.ops] for step in Twin(net.model, OpenVino()).steps]
        assert not distances(net, tmp_path).any()


@pytest.mark.parametrize("again", ["output", "reader", "function", "convolution given"])
def test_a_convolution_is_rounded_where_what_it_is_added_to_is_read_again(again, tmp_path):
    """Its memory must not be written over; one kernel makes a tensor and the function of it that is added."""
    b = Builder(Style(scales="pot", seed=2))
    x, y = b.input("x", 2, 16, 6, 6), b.input("y", 2, 16, 6, 6)
    other = b.quantized(b.float_op("HardSwish", y)) if again == "function" else y
    made = conv(b, x, 16)
    if again in ("output", "convolution given"):
        b.output(other if again == "output" else made)
    else:
        b.output(conv(b, y, 4, 1))
    b.output(add(b, other, made))
    net = b.net()
    assert not any([op.type for op in step.ops] == ["Conv", "Add"] for step in Twin(net.model, OpenVino()).steps)
    assert not distances(net, tmp_path).any()


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("source", ["input", "convolution", "average", "average without grid"])
def test_a_clip_of_codes_has_whole_codes_for_bounds(source, style, tmp_path):
    """Taken for what they are, hundreds of these codes are up to 6 off."""
    b = Builder(Style(scales="pot", seed=1, **style))
    x = b.input("x", 2, 8, 8, 8)
    if source == "convolution":
        x = conv(b, x, 8)
    elif source.startswith("average"):
        mean = b.float_op("AveragePool", x, kernel_shape=[2, 2])
        x = b.on_the_grid_of(x, mean) if "without" in source else b.quantized(mean)
    step = float(x.scale)
    bounds = {"low": np.array(-10.6 * step, np.float32), "high": np.array(12.7 * step, np.float32)}
    made = b.float_op("Clip", x, "low", "high", constants=bounds)
    b.output(b.on_grid(made.name, made.value, np.float32(step / 8), x.zero_point))
    assert not distances(b.net(), tmp_path).any()


@pytest.mark.pairwise
@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("scales", ["pot", "tie"])
@pytest.mark.parametrize("shared", [False, True])
def test_a_product_with_positive_constants_is_in_the_range_behind_it(shared, scales, style, tmp_path):
    """48 of 9216 codes differ with powers of two if it is computed as a product."""
    for source in ("input", "convolution", "average"):
        b = Builder(Style(scales=scales, seed=0, **style))
        x = b.input("x", 2, 8, 12, 12)
        if source == "convolution":
            x = conv(b, x, 8)
        elif source == "average":
            x = b.quantized(b.float_op("AveragePool", x, kernel_shape=[2, 2]))
        factor = b.random.uniform(0.1, 2, (1, 8, 1, 1)).astype(np.float32)
        if shared:
            b.output(x)
        b.output(b.quantized(b.float_op("Mul", x, "factor", constants={"factor": factor})))
        assert not distances(b.net(), tmp_path).any()


@pytest.mark.pairwise
@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("ratio", [0.993, 1.006])
@pytest.mark.parametrize("source", ["input", "convolution", "average"])
@pytest.mark.parametrize(
    "between", ["Transpose", "Concat", "MaxPool", "Relu", "Clip", "wide Clip", "Mul", "Mul of channels"]
)
def test_codes_stay_as_they_are_between_grids_of_next_to_the_same_range(between, source, ratio, style, tmp_path):
    """Up to half of these codes are 1 off if they are put on the second grid; behind a Clip they are, and behind a
    ReLU of codes with a zero point."""
    b = Builder(Style(seed=1, **style))
    x = b.input("x", 2, 8, 8, 8)
    if source == "convolution":
        x = conv(b, x, 8)
    elif source == "average":
        x = b.quantized(b.float_op("AveragePool", x, kernel_shape=[2, 2]))
    step = float(x.scale)
    if between == "Concat":
        made = b.float_op("Concat", x, b.quantized(b.float_op("Neg", x)), axis=1)
    elif between.endswith("Clip"):
        bounds = (-1e4, 1e4) if between == "wide Clip" else (-100.2, 110.3)
        ends = {name: np.array(bound * step, np.float32) for name, bound in zip(("low", "high"), bounds, strict=True)}
        made = b.float_op("Clip", x, "low", "high", constants=ends)
    elif between.startswith("Mul"):
        factor = np.linspace(1.7, 1.705, 8, dtype=np.float32).reshape(1, 8, 1, 1)
        made = b.float_op("Mul", x, "factor", constants={"factor": factor if "of" in between else factor[:, :1]})
        step *= 1.7
    else:
        sizes = {"Transpose": {"perm": [0, 2, 1, 3]}, "MaxPool": {"kernel_shape": [2, 2]}, "Relu": {}}[between]
        made = b.float_op(between, x, **sizes)
    b.output(b.on_grid(made.name, made.value, np.float32(step / ratio), x.zero_point))
    assert not distances(b.net(), tmp_path).any()


@pytest.mark.parametrize("style", STYLES)
def test_one_bias_is_in_the_range_behind_a_convolution(style, tmp_path):
    for seed in range(6):
        for scales in ("pot", "tie"):
            b = Builder(Style(scales=scales, seed=seed, **style))
            x = b.input("x", 4, 16, 12, 12)
            b.output(b.weighted("Conv", x, (1, 16, 3, 3), axis=0, kernel_shape=[3, 3], pads=[1] * 4))
            assert not distances(b.net(), tmp_path).any()


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("scale", [0.0371, 0.3])
def test_what_depends_on_constants_alone_is_quantized_by_a_division(scale, style, tmp_path):
    """All of them are ties: quantized as activations are, 35 to 129 of the 512 sums differ."""
    b = Builder(Style(seed=0, **style))
    x = b.input("x", 2, 4, 64, 1)
    ties = (b.random.integers(-100, 100, (1, 4, 64, 1)) + 0.5) * scale
    table = T(b.constant("table", ties.astype(np.float32)), torch.from_numpy(ties.astype(np.float32)))
    moved = b.float_op("Reshape", table, "shape", constants={"shape": np.array([1, 4, 64, 1])})
    held = b.on_grid(moved.name, moved.value, np.float32(scale), 0 if b.style.symmetric else 120)
    b.output(b.quantized(b.float_op("Add", x, held)))
    assert not distances(b.net(), tmp_path).any()


def test_constants_that_are_split_have_all_their_parts(tmp_path):
    """As the sines and cosines of rotary embeddings, which are one table."""
    b = Builder(Style(seed=0, **INT8))
    x = b.input("x", 2, 4, 64)
    values = b.random.normal(size=(1, 4, 128)).astype(np.float32)
    table = T(b.constant("table", values), torch.from_numpy(values))
    moved = b.float_op("Reshape", table, "shape", constants={"shape": np.array([1, 4, 128])})
    first, second = b.split(b.on_grid(moved.name, moved.value, np.float32(0.03), 0), 2)
    b.output(b.quantized(b.float_op("Mul", b.quantized(b.float_op("Add", x, first)), second)))
    assert not distances(b.net(), tmp_path).any()


def test_int8_with_a_zero_point(tmp_path):
    for kind in ("conv", "conv_relu", "depthwise"):
        net = small_net(kind, Style(activation="int8", scales="tie", seed=1))
        assert not distances(net, tmp_path).any()


@pytest.mark.pairwise(goals=lambda scales, style: [scales, str(style)])
@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("scales", ["random", "pot"])
def test_a_whole_resnet18_is_equal(scales, style, tmp_path):
    """The unrounded residual branch is in it eight times: taken for rounded, hundreds of the 1000 outputs differ."""
    net = resnet18(Style(scales=scales, seed=1, batch=1, **style), size=64)
    assert not distances(net, tmp_path).any()


def test_a_whole_mobilenet_is_equal(tmp_path):
    assert not distances(mobilenet(Style(batch=1), size=64), tmp_path).any()


def test_a_transformer_whose_embeddings_of_positions_are_constant(tmp_path):
    """One of its 320 codes is a tie, which decides about half of the outputs."""
    torch.manual_seed(0)
    network = MODELS["bert_encoder"].build().eval()
    torch.manual_seed(1)
    batches = [MODELS["bert_encoder"].inputs() for _ in range(3)]
    prepared = detent.prepare(network, batches[0], backend="openvino")
    detent.calibrate(prepared, batches)
    verdict = detent.deploy(prepared, tmp_path / "out").verify(batches[:1], latency=False)
    assert verdict.holds, verdict
    assert all(difference.equal for difference in verdict.outputs)


def test_every_operation_of_a_network_from_what_the_engine_gave_it(tmp_path):
    net = resnet18(Style(seed=0, batch=1), size=64)
    deployed = package(net, tmp_path)
    inside = Engine.load(deployed).tensors(net.feeds)
    twin = Twin(deployed, OpenVino()).tensors(net.feeds, given=inside)
    compared = [name for name in inside if name in twin]
    assert len(compared) == 17
    assert all(np.array_equal(twin[name], inside[name]) for name in compared)


def test_the_first_grid_of_a_residual_branch_is_clamped_but_not_rounded():
    """conv -> grid -> add -> grid is one step, and the number between the two grids is no code."""
    steps = Twin(resnet18(Style(batch=1), size=32).model, OpenVino()).steps
    fused = [step for step in steps if [op.type for op in step.ops] == ["Conv", "Add", "Relu"]]
    assert len(fused) == 8


def test_a_convolution_that_reads_what_it_is_added_to_is_not_fused():
    steps = Twin(small_net("residual").model, OpenVino()).steps
    assert not any([op.type for op in step.ops][:2] == ["Conv", "Add"] for step in steps)


def test_a_grid_is_carried_over_what_only_moves_values():
    """Nothing is quantized behind the pool, and the convolution reads integers all the same."""
    text = """
    <ir_version: 10, opset_import: ["": 21]>
    net (float[1, 1, 4, 4] x) => (float[1, 1, 3, 3] y)
    <float s = {0.5}, uint8 z = {3}, int8[1, 1, 1, 1] w = {3}, int8 zw = {0}>
    {
        [qx] xq = QuantizeLinear (x, s, z)
        [dx] xd = DequantizeLinear (xq, s, z)
        [dw] wd = DequantizeLinear (w, s, zw)
        [pool] p = MaxPool <kernel_shape = [2, 2]> (xd)
        [conv] y = Conv (p, wd)
    }
    """
    graph, propagated = propagate_grids(read_qdq(parser.parse_model(text)))
    assert propagated == {"p"}
    assert graph.ops[1].inputs[0] == Operand("p", Encoding(np.float32(0.5), np.int64(3), "uint8"))
    assert [step.ran_as for step in OpenVino().lower(graph)] == ["moved", "integer"]


def test_quantize_is_by_the_range_and_not_by_the_scale():
    """Codes of il + (k + 1/2) * scale: the tie is broken by the float32 shift, not to even."""
    grid = Encoding(np.float32(0.1), np.int64(117), "uint8")
    values = torch.tensor([-20.0, 0.0, 0.25, 13.8, 100.0])
    assert OpenVino().quantize(values, grid).tolist() == [0.0, 117.0, 120.0, 255.0, 255.0]


def test_every_operation_is_lowered():
    for kind in SMALL:
        graph = Twin(small_net(kind).model, OpenVino()).graph
        lowered = [op.name for step in OpenVino().lower(graph) for op in step.ops]
        assert sorted(lowered) == sorted(op.name for op in graph.ops), kind


def _attention(q, k):
    return torch.softmax(q @ k.transpose(1, 2), -1) @ k


INPUTS_ON_TIES = {
    "product": lambda _, q, k: q @ k,
    "attention": lambda _, q, k: _attention(q, k),
    "linear": lambda layer, q, k: layer(q) + layer(k),
    "concat": lambda layer, q, k: layer(torch.cat([q, k], 1)),
    "residual": lambda layer, q, k: layer(k + layer(q)),
    "sum": lambda layer, q, k: layer(q + k),
    "sum-and-first": lambda layer, q, k: layer(q + k) + layer(q),
    "sum-and-second": lambda layer, q, k: layer(q + k) + layer(k),
    "sum-with-moved": lambda layer, q, k: layer(q + k.transpose(1, 2)),
    "sum-and-both": lambda layer, q, k: (q + k, layer(q), layer(k)),
    "factors": lambda _, q, k: q * k,
    "factors-and-sum": lambda _, q, k: (q * k, q + k),
    "factors-and-first": lambda layer, q, k: (q * k, layer(q)),
    "factors-and-second": lambda layer, q, k: layer(q * k) + layer(k),
    "gate": lambda layer, q, k: q * torch.sigmoid(layer(k)),
    "gated": lambda layer, q, k: layer(q) * layer(k).relu(),
}


class _OfTwo(torch.nn.Module):
    def __init__(self, function):
        super().__init__()
        self.layer, self.function = torch.nn.Linear(16, 16), function

    def forward(self, q, k):
        return self.function(self.layer, q, k)


@pytest.mark.parametrize("kind", INPUTS_ON_TIES)
def test_inputs_of_the_network_on_ties(kind, tmp_path):
    """With zero in the middle, those that are stored as int8 are multiplied with the scale and no more; as others are,
    a quarter of these ties would fall to the other side."""
    torch.manual_seed(3)
    batch = (torch.randn(4, 16, 16), 2 * torch.randn(4, 16, 16))
    recipe = Recipe.from_dict({"name": "symmetric", "activation": {"symmetric": True}})
    prepared = detent.prepare(_OfTwo(INPUTS_ON_TIES[kind]).eval(), batch, backend="openvino", recipe=recipe)
    detent.calibrate(prepared, [batch])
    artifact = detent.deploy(prepared, tmp_path / "net")
    random, ties = np.random.default_rng(0), []
    for name in artifact.graph.inputs:
        grid = artifact.graph.grid_of(name)
        near = ((random.integers(grid.qmin, grid.qmax, (4, 16, 16)) + 0.5) * grid.scale).astype(np.float32)
        ties.append(torch.from_numpy(random.choice([near, np.nextafter(near, np.float32(0))])))
    verdict = artifact.verify([tuple(ties)], latency=False)
    assert verdict.holds, verdict

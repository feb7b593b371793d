"""Operations as Qualcomm's HTP takes them give the same integers."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
import pytest

from detent.ir import Network, write_qdq
from detent.rewrites.undo import has_rewrites, undo
from detent.targets.rewrites import legalize
from tests.rewrites.quantized_op import Writing, X, Y, only, run, types


def images(*shape: int) -> np.ndarray:
    return np.random.default_rng(1).normal(0, 4, shape).astype(np.float32)


def unfused(network: Network, x: np.ndarray) -> np.ndarray:
    """Node by node: an integer kernel for what reads codes alone would round sums otherwise."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    content = write_qdq(network).SerializeToString()
    session = onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    return session.run(None, {"x": x})[0]


def transposed(groups: int, outputs: int, *, bias: bool = True, per_channel: bool = True) -> Network:
    """6 channels to `outputs` for each group."""
    rng, w = np.random.default_rng(0), Writing()
    scale = 2.0 ** rng.integers(-5, -2, outputs) if per_channel else np.float32(2.0**-4)
    inputs = [w.on_grid(*X), w.coded("w", rng.integers(-127, 128, (6, outputs, 3, 3)).astype(np.int8), scale, 1)]
    if bias:
        codes = rng.integers(-900, 900, groups * outputs).astype(np.int32)
        inputs.append(
            w.coded("b", codes, np.tile(scale, groups) * X[1] if per_channel else scale * np.float32(X[1]), 0)
        )
    w.node("ConvTranspose", inputs, "conv", group=groups, strides=[2, 2], pads=[1, 1, 1, 1], kernel_shape=[3, 3])
    w.node("Relu", ["conv"], "y")
    return w.network(("n", 6, 5, 7), w.on_grid(*Y))


@pytest.mark.parametrize("groups", [2, 3])
def test_groups_of_several_channels_become_one_and_can_be_put_back(groups: int) -> None:
    before = transposed(groups, 4)
    after = legalize(before, ("densify_conv_transpose",))
    x = images(2, 6, 5, 7)
    assert only(after, "ConvTranspose").groups == 1
    assert after.constants["w_phases"].shape == (6, 4 * groups, 3, 3)
    np.testing.assert_array_equal(run(after, x), run(before, x))
    assert has_rewrites(after)
    again = undo(after)
    assert only(again, "ConvTranspose").groups == groups
    assert only(again, "ConvTranspose").inputs == only(before, "ConvTranspose").inputs
    np.testing.assert_array_equal(again.constants["w"], before.constants["w"])
    np.testing.assert_array_equal(run(again, x), run(before, x))


@pytest.mark.parametrize("layer", [(1, 4, True), (6, 1, True), (2, 4, False)], ids=["dense", "depthwise", "one scale"])
def test_what_the_htp_takes_stays(layer: tuple[int, int, bool]) -> None:
    groups, outputs, per_channel = layer
    before = transposed(groups, outputs, per_channel=per_channel)
    assert legalize(before, ("densify_conv_transpose",)) is before


@pytest.mark.parametrize("groups", [1, 2, 6])
def test_one_without_a_bias_gets_zeros(groups: int) -> None:
    before = transposed(groups, 1 if groups == 6 else 4, bias=False)
    after = legalize(before, ("densify_conv_transpose",))
    bias = only(after, "ConvTranspose").inputs[2]
    assert not after.constants[bias.tensor].any()
    x = images(2, 6, 5, 7)
    np.testing.assert_array_equal(run(after, x), run(before, x))


def with_number(op: str, number: float, *, first: bool = False) -> Network:
    w = Writing()
    inputs = [w.on_grid(*X), w.constant("number", np.float32(number))]
    w.node(op, inputs[::-1] if first else inputs, "y")
    return w.network(("n", 3, 4), w.on_grid(*Y))


@pytest.mark.parametrize("number", [2.5, -0.3, 0.0])
@pytest.mark.parametrize(
    ("op", "first"), [("Add", False), ("Mul", True), ("Sub", True), ("Sub", False), ("Max", False)]
)
def test_a_number_becomes_a_code_of_its_value(op: str, first: bool, number: float) -> None:
    before = with_number(op, number, first=first)
    after = legalize(before, ("quantize_scalar_constants",))
    (held,) = (read for read in only(after, op).inputs if read.tensor == "number_on_grid")
    assert held.encoding.dtype == "uint8"
    assert held.encoding.dequantize(after.constants["number_on_grid"]) == np.float32(number)
    x = images(2, 3, 4)
    np.testing.assert_array_equal(unfused(after, x), unfused(before, x))


def test_a_number_beside_a_float_tensor_stays() -> None:
    w = Writing()
    w.node("Mul", ["x", w.constant("number", np.float32(2))], "y")
    before = w.network(("n", 3), w.on_grid(*Y))
    assert legalize(before, ("quantize_scalar_constants",)) is before


def looked_up(*, float_reader: bool = False) -> Network:
    w = Writing()
    table = w.constant("table", np.random.default_rng(2).normal(0, 3, (9, 4)).astype(np.float32))
    w.node("Cast", ["x"], "ids", to=onnx.TensorProto.INT64)
    w.node("Gather", [table, "ids"], "y", axis=0)
    if float_reader:
        w.node("Relu", ["y"], "z")
        return w.network((5,), w.node("Add", [w.on_grid(*Y), "z"], "sum"))
    return w.network((5,), w.on_grid(*Y))


def test_rows_that_are_looked_up_are_codes_before() -> None:
    before = looked_up()
    after = legalize(before, ("quantize_embedding_table",))
    ids = np.array([0, 3, 8, 3, 1], np.float32)
    assert after.constants["y.table"].dtype == np.uint8
    assert "table" not in after.constants
    assert types(after) == types(before)
    np.testing.assert_array_equal(run(after, ids), run(before, ids))


def test_rows_that_are_read_as_floats_stay() -> None:
    before = looked_up(float_reader=True)
    assert legalize(before, ("quantize_embedding_table",)) is before

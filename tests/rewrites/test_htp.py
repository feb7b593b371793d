"""Operations as Qualcomm's HTP takes them give the same integers."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper, numpy_helper

from detent.rewrites.undo import has_rewrites, undo
from detent.targets.rewrites import legalize
from tests.rewrites.quantized_op import Writing, X, Y, run, types


def initializers(model: onnx.ModelProto) -> dict[str, np.ndarray]:
    return {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}


def images(*shape: int) -> np.ndarray:
    return np.random.default_rng(1).normal(0, 4, shape).astype(np.float32)


def unfused(model: onnx.ModelProto, x: np.ndarray) -> np.ndarray:
    """Node by node: an integer kernel for what reads codes alone would round sums otherwise."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return session.run(None, {"x": x})[0]


def transposed(groups: int, outputs: int, *, bias: bool = True, per_channel: bool = True) -> onnx.ModelProto:
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
    return w.model(("n", 6, 5, 7), w.on_grid(*Y))


def only(model: onnx.ModelProto, op: str) -> onnx.NodeProto:
    (node,) = (node for node in model.graph.node if node.op_type == op)
    return node


def attributes(node: onnx.NodeProto) -> dict[str, Any]:
    return {attribute.name: helper.get_attribute_value(attribute) for attribute in node.attribute}


@pytest.mark.parametrize("groups", [2, 3])
def test_groups_of_several_channels_become_one_and_can_be_put_back(groups: int) -> None:
    before = transposed(groups, 4)
    after = legalize(before, ("densify_conv_transpose",))
    x = images(2, 6, 5, 7)
    assert attributes(only(after, "ConvTranspose"))["group"] == 1
    assert initializers(after)["w_phases_quantized"].shape == (6, 4 * groups, 3, 3)
    np.testing.assert_array_equal(run(after, x), run(before, x))
    assert has_rewrites(after)
    again = undo(after)
    assert attributes(only(again, "ConvTranspose"))["group"] == groups
    assert list(only(again, "ConvTranspose").input) == list(only(before, "ConvTranspose").input)
    np.testing.assert_array_equal(initializers(again)["w_phases_quantized"], initializers(before)["w_quantized"])
    np.testing.assert_array_equal(run(again, x), run(before, x))


@pytest.mark.parametrize("layer", [(1, 4, True), (6, 1, True), (2, 4, False)], ids=["dense", "depthwise", "one scale"])
def test_what_the_htp_takes_stays(layer: tuple[int, int, bool]) -> None:
    groups, outputs, per_channel = layer
    before = transposed(groups, outputs, per_channel=per_channel)
    assert legalize(before, ("densify_conv_transpose",)) == before


@pytest.mark.parametrize("groups", [1, 2, 6])
def test_one_without_a_bias_gets_zeros(groups: int) -> None:
    before = transposed(groups, 1 if groups == 6 else 4, bias=False)
    after = legalize(before, ("densify_conv_transpose",))
    name = only(after, "ConvTranspose").input[2]
    assert not initializers(after)[f"{name}_quantized"].any()
    x = images(2, 6, 5, 7)
    np.testing.assert_array_equal(run(after, x), run(before, x))


def with_number(op: str, number: float, *, first: bool = False) -> onnx.ModelProto:
    w = Writing()
    inputs = [w.on_grid(*X), w.constant("number", np.float32(number))]
    w.node(op, inputs[::-1] if first else inputs, "y")
    return w.model(("n", 3, 4), w.on_grid(*Y))


@pytest.mark.parametrize("number", [2.5, -0.3, 0.0])
@pytest.mark.parametrize(
    ("op", "first"), [("Add", False), ("Mul", True), ("Sub", True), ("Sub", False), ("Max", False)]
)
def test_a_number_becomes_a_code_of_its_value(op: str, first: bool, number: float) -> None:
    before = with_number(op, number, first=first)
    after = legalize(before, ("quantize_scalar_constants",))
    held = initializers(after)
    code, scale, zero = (held[f"number_on_grid_{part}"] for part in ("quantized", "scale", "zero_point"))
    assert (code.dtype, zero.dtype) == (np.uint8, np.uint8)
    assert (int(code) - int(zero)) * scale == np.float32(number)
    x = images(2, 3, 4)
    np.testing.assert_array_equal(unfused(after, x), unfused(before, x))


def test_a_number_beside_a_float_tensor_stays() -> None:
    w = Writing()
    w.node("Mul", ["x", w.constant("number", np.float32(2))], "y")
    before = w.model(("n", 3), w.on_grid(*Y))
    assert legalize(before, ("quantize_scalar_constants",)) == before


def looked_up(*, float_reader: bool = False) -> onnx.ModelProto:
    w = Writing()
    table = w.constant("table", np.random.default_rng(2).normal(0, 3, (9, 4)).astype(np.float32))
    w.node("Cast", ["x"], "ids", to=onnx.TensorProto.INT64)
    w.node("Gather", [table, "ids"], "y", axis=0)
    if float_reader:
        w.node("Relu", ["y"], "z")
        return w.model((5,), w.node("Add", [w.on_grid(*Y), "z"], "sum"))
    return w.model((5,), w.on_grid(*Y))


def test_rows_that_are_looked_up_are_codes_before() -> None:
    before = looked_up()
    after = legalize(before, ("quantize_embedding_table",))
    ids = np.array([0, 3, 8, 3, 1], np.float32)
    assert initializers(after)["y.table_quantized"].dtype == np.uint8
    assert "table" not in initializers(after)
    assert types(after) == types(before)
    np.testing.assert_array_equal(run(after, ids), run(before, ids))


def test_rows_that_are_read_as_floats_stay() -> None:
    before = looked_up(float_reader=True)
    assert legalize(before, ("quantize_embedding_table",)) == before

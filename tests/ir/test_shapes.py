"""Shapes behind sizes that a network computes, and the numbers that follow from sizes."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper, parser

from detent.errors import DeployError
from detent.ir.shapes import BatchSizes, infer_node, known_sizes, shapes_of

HEADS = """
    sizes = Shape (x)
    count = Gather <axis = 0> (sizes, zero)
    length = Gather <axis = 0> (sizes, one)
    wanted = Concat <axis = 0> (count, length, heads)
    apart = Reshape (x, wanted)
    y = Transpose <perm = [0, 2, 1, 3]> (apart)
"""
OLD = HEADS.replace(
    "count = Gather <axis = 0> (sizes, zero)",
    "single = Gather <axis = 0> (sizes, none) count = Unsqueeze <axes = [0]> (single)",
)


def model(body: str, opset: int = 17) -> onnx.ModelProto:
    made = parser.parse_model(
        f'<ir_version: 8, opset_import: ["": {opset}]> net (float[b, 9, 32] x) => (float[b, h, 9, c] y) {{ {body} }}'
    )
    held = {"zero": np.array([0]), "one": np.array([1]), "none": np.array(0), "heads": np.array([4, -1])}
    made.graph.initializer.extend(numpy_helper.from_array(value, name) for name, value in held.items())
    return made


@pytest.mark.parametrize(("body", "opset"), [(HEADS, 17), (HEADS, 21), (OLD, 11)])
def test_shapes_behind_computed_sizes(body: str, opset: int) -> None:
    for batch in (1, 2):
        known = known_sizes(model(body, opset), batch)
        assert known.shapes["apart"] == (batch, 9, 4, 8)
        assert known.shapes["y"] == (batch, 4, 9, 8)
        assert known.values["wanted"].tolist() == [batch, 9, 4, -1]
        assert "apart" not in known.values


def test_only_the_batch_is_free() -> None:
    shapes = shapes_of(model(HEADS))
    assert [isinstance(size, str) for size in shapes["apart"]] == [True, False, False, False]
    assert shapes["apart"][1:] == (9, 4, 8)
    assert shapes["y"][1:] == (4, 9, 8)


def test_sizes_that_do_not_fit_are_unknown_unless_strict() -> None:
    made = model(HEADS.replace("Transpose <perm = [0, 2, 1, 3]> (apart)", "Concat <axis = 1> (apart, x)"))
    assert "y" not in known_sizes(made, 1).shapes
    with pytest.raises(onnx.shape_inference.InferenceError):
        known_sizes(made, 1, strict=True)


@pytest.mark.parametrize("opset", [11, 21, 22])
@pytest.mark.parametrize("kind", ["MaxPool", "AveragePool"])
def test_a_window_that_would_begin_outside_is_not_counted(kind: str, opset: int) -> None:
    """Of rows of 10, windows of 1 begin at 0, 2 .. 8; of columns of 8, windows of 2 begin at 0, 3, 6."""
    text = f"""
    <ir_version: 8, opset_import: ["": {opset}]> net (float[b, 3, 10, 8] x) => (float[b, 3, h, w] y)
    {{ y = {kind} <kernel_shape = [1, 2], strides = [2, 3], ceil_mode = 1> (x) }}
    """
    assert known_sizes(parser.parse_model(text), 1).shapes["y"] == (1, 3, 5, 3)
    assert shapes_of(parser.parse_model(text))["y"][1:] == (3, 5, 3)


def test_sizes_that_the_batch_decides_are_free() -> None:
    sizes = BatchSizes.of(model(HEADS))
    assert sizes.shape("y") == (1, 4, 9, 8)
    assert sizes.signature("y") == (-1, 4, 9, 8)
    assert sizes.value("wanted") is None
    length = sizes.value("length")
    assert length is not None
    assert length.tolist() == [9]


def test_a_shape_that_is_only_known_when_the_network_runs_is_refused() -> None:
    made = model("found = NonZero (x) kept = Gather <axis = 0> (found, zero) y = Identity (x)")
    with pytest.raises(DeployError, match="only known when the network runs"):
        BatchSizes.of(made).shape("kept")


def test_shapes_that_do_not_fit_are_refused_if_strict() -> None:
    made = model(HEADS.replace("Transpose <perm = [0, 2, 1, 3]> (apart)", "Concat <axis = 1> (apart, x)"))
    assert "y" not in BatchSizes.of(made).ones.shapes
    with pytest.raises(DeployError, match="do not fit together"):
        BatchSizes.of(made, strict=True)


def test_the_type_of_what_one_node_gives() -> None:
    node = helper.make_node("Reshape", ["x", "shape"], ["y"])
    types = {
        "x": helper.make_tensor_type_proto(TensorProto.FLOAT, [2, 6]),
        "shape": helper.make_tensor_type_proto(TensorProto.INT64, [2]),
    }
    found = infer_node(node, types, {"shape": np.array([3, -1])}, 17)
    assert [dim.dim_value for dim in found["y"].tensor_type.shape.dim] == [3, 4]

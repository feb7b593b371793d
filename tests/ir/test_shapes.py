"""Shapes behind sizes that a network computes, and the numbers that follow from sizes."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper, parser

from detent.errors import DeployError
from detent.ir.free_sizes import FreeSizes, infer_node, known_sizes
from detent.ir.shapes import shapes_of

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
    sizes = FreeSizes.of(model(HEADS))
    assert sizes.shape("y") == (1, 4, 9, 8)
    assert sizes.signature("y") == (-1, 4, 9, 8)
    assert sizes.value("wanted") is None
    length = sizes.value("length")
    assert length is not None
    assert length.tolist() == [9]


def test_a_shape_that_is_only_known_when_the_network_runs_is_refused() -> None:
    made = model("found = NonZero (x) kept = Gather <axis = 0> (found, zero) y = Identity (x)")
    with pytest.raises(DeployError, match="only known when the network runs"):
        FreeSizes.of(made).shape("kept")


def test_shapes_that_do_not_fit_are_refused_if_strict() -> None:
    made = model(HEADS.replace("Transpose <perm = [0, 2, 1, 3]> (apart)", "Concat <axis = 1> (apart, x)"))
    assert "y" not in FreeSizes.of(made).one.shapes
    with pytest.raises(DeployError, match="do not fit together"):
        FreeSizes.of(made, strict=True)


def test_the_type_of_what_one_node_gives() -> None:
    node = helper.make_node("Reshape", ["x", "shape"], ["y"])
    types = {
        "x": helper.make_tensor_type_proto(TensorProto.FLOAT, [2, 6]),
        "shape": helper.make_tensor_type_proto(TensorProto.INT64, [2]),
    }
    found = infer_node(node, types, {"shape": np.array([3, -1])}, 17)
    assert [dim.dim_value for dim in found["y"].tensor_type.shape.dim] == [3, 4]


STRIDED = """
<ir_version: 8, opset_import: ["": 17]> net (float[n, 3, 48, w] x) => (float[n, c] y)
{
    a = MaxPool <kernel_shape = [2, 2], strides = [2, 2], ceil_mode = 1> (x)
    b = MaxPool <kernel_shape = [4, 4], strides = [4, 4], ceil_mode = 1> (a)
    c = MaxPool <kernel_shape = [6, 1], strides = [6, 1]> (b)
    d = Squeeze (c, two)
    sizes = Shape (d)
    width = Gather (sizes, two)
    e = Transpose <perm = [0, 2, 1]> (d)
    y = Reshape (e, flat)
}
"""


def strided() -> onnx.ModelProto:
    made = parser.parse_model(STRIDED)
    held = {"two": np.array([2]), "flat": np.array([0, -1])}
    made.graph.initializer.extend(numpy_helper.from_array(value, name) for name, value in held.items())
    return made


def test_a_free_width_stays_free_behind_strides() -> None:
    """Widths of 1 and of 2 would both be 1 there."""
    shapes = shapes_of(strided())
    assert [size if isinstance(size, int) else "free" for size in shapes["c"]] == ["free", 3, 1, "free"]
    assert [size if isinstance(size, int) else "free" for size in shapes["e"]] == ["free", "free", 3]
    sizes = FreeSizes.of(strided())
    assert sizes.inner == ("w",)
    assert sizes.signature("e") == (-1, -1, 3)
    assert sizes.value("width") is None


def test_a_size_of_minus_one_is_free() -> None:
    made = strided()
    for dim in (made.graph.input[0].type.tensor_type.shape.dim[axis] for axis in (0, 3)):
        dim.dim_value = -1
    shapes = shapes_of(made)
    assert shapes["x"] == ("?", 3, 48, "?")
    assert [isinstance(size, str) for size in shapes["e"]] == [True, True, False]


def test_time_along_the_first_axis_needs_larger_sizes() -> None:
    """15 frames are one: for fewer, ONNX's inference of the Slice behind it would end the process."""
    text = """
    <ir_version: 8, opset_import: ["": 17]> net (float[time, 8] x) => (float[a, b, c, d] y)
    {
        planes = Unsqueeze (x, leading)
        windows = MaxPool <kernel_shape = [15, 1]> (planes)
        y = Slice (windows, start, end, axis, step)
    }
    """
    made = parser.parse_model(text)
    held = {"leading": [0, 1], "start": [-1], "end": [-(2**31)], "axis": [2], "step": [-1]}
    made.graph.initializer.extend(numpy_helper.from_array(np.array(value), name) for name, value in held.items())
    assert shapes_of(made)["windows"][:2] == (1, 1)
    assert [isinstance(size, str) for size in shapes_of(made)["y"]] == [False, False, True, False]


def test_a_slice_of_nothing_is_not_inferred() -> None:
    node = helper.make_node("Slice", ["x", "start", "end", "axis", "step"], ["y"])
    one = {name: helper.make_tensor_type_proto(TensorProto.INT64, [1]) for name in ("start", "end", "axis", "step")}
    values = {"start": np.array([-1]), "end": np.array([-9]), "axis": np.array([0]), "step": np.array([-1])}
    with pytest.raises(onnx.shape_inference.InferenceError, match="empty"):
        infer_node(node, {"x": helper.make_tensor_type_proto(TensorProto.FLOAT, [0, 4]), **one}, values, 17)


def test_sizes_that_differ_are_not_taken_for_equal() -> None:
    text = """
    <ir_version: 8, opset_import: ["": 17]> net (float[n, 3, h, w] x) => (bool y)
    { sizes = Shape (x) high = Gather (sizes, two) wide = Gather (sizes, three) y = Equal (high, wide) }
    """
    made = parser.parse_model(text)
    held = {"two": np.array(2), "three": np.array(3)}
    made.graph.initializer.extend(numpy_helper.from_array(value, name) for name, value in held.items())
    assert FreeSizes.of(made).value("y") is None

"""`float_model`: the same network, its Q and DQ nodes gone."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import parser

from detent.errors import DeployError
from detent.ir.metadata import CODE_RANGE, ROLE
from detent.rewrites import float_model

NET = """
<ir_version: 10, opset_import: ["": 21]>
net (float[batch, 2, 4, 4] x) => (float[batch, 3, 4, 4] y)
<float sx = {0.5}, uint8 zx = {3}, float sy = {0.25}, uint8 zy = {0}, float low = {0}, float high = {15.75},
 int8[3, 2, 1, 1] conv_weight_quantized = {1, 2, -3, 4, 5, -6}, float[3] sw = {0.5, 0.25, 1}, int8[3] zw = {0, 0, 0},
 int32[3] conv_bias_quantized = {4, -4, 8}, float[3] sb = {0.25, 0.125, 0.5}, int32[3] zb = {0, 0, 0}>
{
    [quantize_x] x_quantized = QuantizeLinear (x, sx, zx)
    [dequantize_x] x_dequantized = DequantizeLinear (x_quantized, sx, zx)
    [dequantize_w] conv_weight = DequantizeLinear <axis = 0> (conv_weight_quantized, sw, zw)
    [dequantize_b] conv_bias = DequantizeLinear <axis = 0> (conv_bias_quantized, sb, zb)
    [conv] c = Conv <kernel_shape = [1, 1]> (x_dequantized, conv_weight, conv_bias)
    [relu] r = Relu (c)
    [clip] r_clipped = Clip (r, low, high)
    [quantize_r] r_quantized = QuantizeLinear (r_clipped, sy, zy)
    [dequantize_r] y = DequantizeLinear (r_quantized, sy, zy)
}
"""


@pytest.fixture
def quantized() -> onnx.ModelProto:
    model = parser.parse_model(NET)
    (clip,) = (node for node in model.graph.node if node.op_type == "Clip")
    clip.metadata_props.add(key=ROLE, value=CODE_RANGE)
    return model


def run(model: onnx.ModelProto, **inputs: np.ndarray) -> np.ndarray:
    onnx.checker.check_model(model, full_check=True)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return session.run(None, inputs)[0]


def test_only_the_network_is_left(quantized):
    graph = float_model(quantized).graph
    assert [(node.op_type, list(node.input), list(node.output)) for node in graph.node] == [
        ("Conv", ["x", "conv_weight", "conv_bias"], ["c"]),
        ("Relu", ["c"], ["r"]),
        ("Identity", ["r"], ["y"]),
    ]
    assert [node.name for node in graph.node][:2] == ["conv", "relu"]
    assert {tensor.name for tensor in graph.initializer} == {"conv_weight", "conv_bias"}
    assert [value.name for value in (*graph.input, *graph.output)] == ["x", "y"]


def test_weights_are_what_their_codes_stand_for(quantized):
    held = {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in float_model(quantized).graph.initializer}
    assert held["conv_weight"].reshape(3, 2).tolist() == [[0.5, 1.0], [-0.75, 1.0], [5.0, -6.0]]
    assert held["conv_bias"].tolist() == [1.0, -0.5, 4.0]
    assert all(array.dtype == np.float32 for array in held.values())


def test_activations_are_neither_rounded_nor_clipped(quantized):
    x = np.zeros((1, 2, 4, 4), np.float32)
    x[0, :, 0, 0] = (100.0, 0.3)
    assert run(float_model(quantized), x=x)[0, :, 0, 0].tolist() == pytest.approx([51.3, 0.0, 502.2])
    assert run(quantized, x=x)[0, :, 0, 0].tolist() == [15.75, 0.0, 15.75]  # of the quantized one


def test_the_model_that_was_given_is_not_changed(quantized):
    before = quantized.SerializeToString()
    float_model(quantized)
    assert quantized.SerializeToString() == before


def test_an_activation_function_clip_is_kept():
    model = parser.parse_model(NET)
    assert [node.op_type for node in float_model(model).graph.node] == ["Conv", "Relu", "Clip", "Identity"]


def test_an_output_of_codes_becomes_a_float_output():
    text = NET.replace("(float[batch, 3, 4, 4] y)", "(uint8[batch, 3, 4, 4] r_quantized)")
    model = float_model(
        parser.parse_model(text.replace("    [dequantize_r] y = DequantizeLinear (r_quantized, sy, zy)\n", ""))
    )
    assert model.graph.output[0].type.tensor_type.elem_type == onnx.TensorProto.FLOAT
    assert run(model, x=np.zeros((1, 2, 4, 4), np.float32))[0, :, 0, 0].tolist() == [1.0, 0.0, 4.0]


def test_integers_that_come_in_are_still_dequantized():
    text = NET.replace("float[batch, 2, 4, 4] x", "uint8[batch, 2, 4, 4] x_quantized")
    text = text.replace("    [quantize_x] x_quantized = QuantizeLinear (x, sx, zx)\n", "")
    model = float_model(parser.parse_model(text))
    assert model.graph.node[0].op_type == "DequantizeLinear"
    x = np.full((1, 2, 4, 4), 5, np.uint8)  # stands for 1.0
    assert run(model, x_quantized=x)[0, :, 0, 0].tolist() == [2.5, 0.0, 3.0]


@pytest.mark.parametrize(
    ("codes", "scale", "attributes", "expected"),  # two codes of four bits to a byte: 0x21, 0x43, 0x65, 0x87
    [
        ("uint4[2, 4] q = {33, 67, 101, 135}", "float[2, 2] s = {1, 2, 3, 4}", "axis = 1, block_size = 2",
         [[1, 2, 6, 8], [15, 18, 28, 32]]),
        ("int16[2, 4] q = {1, 2, 3, 4, 5, 6, 7, 8}", "float s = {0.5}", "axis = 1",
         [[0.5, 1, 1.5, 2], [2.5, 3, 3.5, 4]]),
    ],
    ids=["uint4-in-blocks", "int16-per-tensor"],
)  # fmt: skip
def test_every_way_of_storing_codes(codes, scale, attributes, expected):
    text = f"""
    <ir_version: 10, opset_import: ["": 21]>
    net (float[2, 4] x) => (float[2, 4] y) <{codes}, {scale}>
    {{
        w = DequantizeLinear <{attributes}> (q, s)
        y = Add (x, w)
    }}
    """
    assert run(float_model(parser.parse_model(text)), x=np.zeros((2, 4), np.float32)).tolist() == expected


def test_control_flow_reads_what_was_quantized():
    text = """
    <ir_version: 10, opset_import: ["": 21]>
    net (float[2] x, bool c) => (float[2] y) <float s = {0.5}, uint8 z = {1}>
    {
        xq = QuantizeLinear (x, s, z)
        xd = DequantizeLinear (xq, s, z)
        y = If (c) <
            then_branch = one () => (float[2] a) { a = Relu (xd) },
            else_branch = two () => (float[2] b) { b = Neg (xd) }
        >
    }
    """
    model = float_model(parser.parse_model(text))
    assert [node.op_type for node in model.graph.node] == ["If"]
    got = run(model, x=np.array([0.3, -0.3], np.float32), c=np.array(True))
    assert got.tolist() == pytest.approx([0.3, 0.0])


def test_a_computed_scale_is_refused():
    text = """
    <ir_version: 10, opset_import: ["": 21]>
    net (float[1] x) => (float[1] y) <int8[1] q = {2}>
    {
        s = Abs (x)
        y = DequantizeLinear (q, s)
    }
    """
    with pytest.raises(DeployError, match="is computed"):
        float_model(parser.parse_model(text))


def test_a_tensor_that_is_requantized_is_not_copied():
    text = """
    <ir_version: 10, opset_import: ["": 21]>
    net (float[2] x) => (float[2] y) <float s = {0.5}, uint8 z = {1}, float t = {0.25}>
    {
        a = QuantizeLinear (x, s, z)
        b = DequantizeLinear (a, s, z)
        c = QuantizeLinear (b, t, z)
        d = DequantizeLinear (c, t, z)
        y = Relu (d)
    }
    """
    (node,) = float_model(parser.parse_model(text)).graph.node
    assert (node.op_type, list(node.input)) == ("Relu", ["x"])

"""Who reads a tensor in an exported graph."""

from __future__ import annotations

from onnx import helper

from detent.frontends.torch.readers import parameter_readers, readers, sources

NODES = [
    helper.make_node("Clip", ["x", "x_least", "x_most"], ["x_clipped"], name="x/Clip"),
    helper.make_node("QuantizeLinear", ["x_clipped", "s"], ["x_quantized"], name="x/Q"),
    helper.make_node("DequantizeLinear", ["x_quantized", "s"], ["x_dequantized"], name="x/DQ"),
    helper.make_node(
        "DequantizeLinear", ["fc.weight_transposed_quantized", "t"], ["fc.weight_transposed"], name="w/DQ"
    ),
    helper.make_node("MatMul", ["x_dequantized", "fc.weight_transposed"], ["fc.matmul"], name="fc/MatMul"),
    helper.make_node("Add", ["fc.matmul", "fc.bias"], ["fc"], name="fc"),
    helper.make_node("Clip", ["x", "zero", "six"], ["relu6"], name="relu6"),
]


def test_what_stands_for_a_tensor_is_traced_back_to_it():
    assert sources(NODES) == {
        "x_clipped": "x",
        "x_quantized": "x",
        "x_dequantized": "x",
        "fc.weight_transposed": "fc.weight_transposed_quantized",
    }
    assert sources(NODES[2:3], {"x_quantized": "x"}) == {"x_dequantized": "x"}


def test_nodes_that_read_it_in_any_form_are_its_readers():
    found = readers(NODES)
    assert found["x"] == ["fc/MatMul", "relu6"]  # a Clip of the model's own is an operation
    assert found["fc.matmul"] == ["fc"]
    assert "x_dequantized" not in found


def test_parameters_are_found_however_they_are_stored():
    assert parameter_readers("fc.weight", readers(NODES)) == ["fc/MatMul"]
    assert parameter_readers("fc.bias", readers(NODES)) == ["fc"]
    assert parameter_readers("other.weight", readers(NODES)) == []

"""Writing a network as QDQ ONNX: reading it gives the same network, and ONNX Runtime the same numbers."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper, parser

from detent.errors import DeployError
from detent.ir import Encoding, Layout, Network, Op, Operand, Output, Port, StoredAs, read_qdq, write_qdq
from detent.ir.metadata import REQUANTIZE, ROLE

BYTES = Encoding(np.float32(0.5), np.int64(3), "uint8")
FINER = Encoding(np.float32(0.25), np.int64(0), "int8")
SIX_BITS = Encoding(np.float32(0.5), np.int64(0), "int8", qmin=-31, qmax=31)
WEIGHT = Encoding(np.array([0.5, 0.25], np.float32), np.zeros(2, np.int64), "int8", axis=0)


def network(ops: list[Op], output: Output, **changed) -> Network:
    made = Network(
        {"x": Port("float32", ("N", 2))}, (output,), tuple(ops), {}, frozenset(), {"x": ("N", 2)}, 21, name="net"
    )
    return replace(made, **changed)


def kinds(model: onnx.ModelProto) -> list[tuple[str, str]]:
    onnx.checker.check_model(model, full_check=True)
    return [(node.op_type, node.output[0]) for node in model.graph.node]


def run(model: onnx.ModelProto, **inputs: np.ndarray) -> np.ndarray:
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return session.run(None, inputs)[0]


def test_a_read_on_a_grid_becomes_a_pair():
    relu = Op("Relu", "relu", (Operand("x", BYTES),), ("y",))
    given = network([relu], Output("y", Operand("y"), shape=("N", 2)))
    model = write_qdq(given)
    assert kinds(model) == [("QuantizeLinear", "x_quantized"), ("DequantizeLinear", "x_dequantized"), ("Relu", "y")]
    assert [node.name for node in model.graph.node] == ["x/QuantizeLinear", "x/DequantizeLinear", "relu"]
    assert read_qdq(model).ops == given.ops
    assert run(model, x=np.float32([[-0.3, 0.3]])).tolist() == [[0.0, 0.5]]


def test_each_reader_has_its_grid():
    ops = [
        Op("Relu", "a", (Operand("x", BYTES),), ("a",)),
        Op("Relu", "b", (Operand("x", FINER),), ("b",)),
        Op("Relu", "c", (Operand("x"),), ("c",)),
        Op("Sum", "y", (Operand("a", BYTES), Operand("b"), Operand("c")), ("y",)),
    ]
    given = network(ops, Output("y", Operand("y"), shape=("N", 2)))
    model = write_qdq(given)
    assert read_qdq(model).ops == given.ops
    assert run(model, x=np.float32([[0.3, 2.13]])).tolist() == [
        [0.5 + 0.25 + np.float32(0.3), 2 + 2.25 + np.float32(2.13)]
    ]


def test_constants_keep_their_names_and_types():
    codes = np.array([[1, -2], [3, 4]])
    gemm = Op("Gemm", "fc", (Operand("x", BYTES), Operand("fc.weight", WEIGHT)), ("y",), {"transB": 1})
    given = network(
        [gemm],
        Output("y", Operand("y"), shape=("N", 2)),
        constants={"fc.weight": codes},
        coded=frozenset({"fc.weight"}),
        stored_as={"fc.weight": StoredAs("fc.w", Layout.TRANSPOSED)},
    )
    model = write_qdq(given)
    held = {tensor.name: tensor for tensor in model.graph.initializer}
    assert held["fc.weight_quantized"].data_type == onnx.TensorProto.INT8
    assert ("DequantizeLinear", "fc.weight") in kinds(model)
    again = read_qdq(model)
    assert again.constants["fc.weight"].tolist() == codes.tolist()
    assert again.coded == {"fc.weight"}
    assert again.stored_as == {"fc.weight": StoredAs("fc.w", Layout.TRANSPOSED)}
    assert run(model, x=np.float32([[1.0, 2.0]])).tolist() == [[-1.5, 2.75]]


@pytest.mark.parametrize("dtype", ["int4", "uint4", "int2", "int16", "int32"])
def test_codes_of_every_type(dtype: str):
    encoding = Encoding(np.float32(0.5), np.int64(0), dtype)
    given = network(
        [Op("Add", "add", (Operand("x"), Operand("c", encoding)), ("y",))],
        Output("y", Operand("y"), shape=("N", 2)),
        constants={"c": np.array([1, 0])},
        coded=frozenset({"c"}),
        opset=25,
    )
    again = read_qdq(write_qdq(given))
    assert again.ops == given.ops
    assert again.constants["c"].tolist() == [1, 0]


def test_fewer_codes_than_the_type_has_are_a_clip_that_belongs_to_the_grid():
    given = network([Op("Relu", "relu", (Operand("x", SIX_BITS),), ("y",))], Output("y", Operand("y"), shape=("N", 2)))
    model = write_qdq(given)
    assert kinds(model)[0] == ("Clip", "x_clipped")
    assert read_qdq(model).ops == given.ops
    assert run(model, x=np.float32([[100.0, 1.3]])).tolist() == [[15.5, 1.5]]


def test_a_clip_of_the_network_with_such_a_name_stays_one():
    """Its bounds are codes of the grid behind it, and its tensor has the name that a writer would take."""
    clip = Op("Clip", "act", (Operand("x"), Operand("low"), Operand("high")), ("x_clipped",))
    ops = [clip, Op("Relu", "relu", (Operand("x_clipped", SIX_BITS),), ("y",))]
    bounds = {"low": np.float32(-15.5), "high": np.float32(15.5)}
    given = network(ops, Output("y", Operand("y"), shape=("N", 2)), constants=bounds)
    again = read_qdq(write_qdq(given))
    assert again.ops == given.ops
    full = replace(SIX_BITS, qmin=-128, qmax=127)
    given = network([clip, replace(ops[1], inputs=(Operand("x_clipped", full),))], given.outputs[0], constants=bounds)
    assert read_qdq(write_qdq(given)).ops == given.ops


def test_names_that_the_network_has_are_not_taken():
    ops = [
        Op("Relu", "x/QuantizeLinear", (Operand("x", BYTES),), ("x_quantized",)),
        Op("Relu", "second", (Operand("x_quantized", BYTES),), ("x_dequantized",)),
    ]
    given = network(ops, Output("x_dequantized", Operand("x_dequantized"), shape=("N", 2)))
    model = write_qdq(given)
    assert kinds(model)[:2] == [("QuantizeLinear", "x_quantized.1"), ("DequantizeLinear", "x_dequantized.1")]
    assert read_qdq(model).ops == given.ops


def test_an_output_on_a_grid_has_its_own_name():
    given = network([Op("Relu", "r", (Operand("x"),), ("r",))], Output("y", Operand("r", BYTES), shape=("N", 2)))
    model = write_qdq(given)
    assert kinds(model) == [("Relu", "r"), ("QuantizeLinear", "r_quantized"), ("DequantizeLinear", "y")]
    assert read_qdq(model).outputs == given.outputs


def test_an_output_of_codes():
    given = network(
        [Op("Relu", "r", (Operand("x"),), ("r",))], Output("y", Operand("r", BYTES), as_codes=True, shape=("N", 2))
    )
    model = write_qdq(given)
    assert kinds(model) == [("Relu", "r"), ("QuantizeLinear", "y")]
    assert read_qdq(model).outputs == given.outputs
    assert run(model, x=np.float32([[1.0, -1.0]])).tolist() == [[5, 3]]


def test_codes_that_the_network_is_given():
    given = network(
        [Op("Relu", "r", (Operand("x", BYTES),), ("y",))],
        Output("y", Operand("y"), shape=("N", 2)),
        inputs={"x": Port("uint8", ("N", 2))},
        coded=frozenset({"x"}),
    )
    model = write_qdq(given)
    assert kinds(model) == [("DequantizeLinear", "x_dequantized"), ("Relu", "y")]
    assert read_qdq(model).ops == given.ops


def test_requantizing_needs_no_node_of_its_own():
    identity = Op("Identity", "i", (Operand("x", BYTES),), ("i",), metadata={ROLE: REQUANTIZE})
    ops = [identity, Op("Relu", "r", (Operand("i", FINER),), ("y",))]
    given = network(ops, Output("y", Operand("y"), shape=("N", 2)))
    model = write_qdq(given)
    assert [op for op, _ in kinds(model)] == [*("QuantizeLinear", "DequantizeLinear") * 2, "Relu"]
    assert [(op.type, op.inputs, op.outputs) for op in read_qdq(model).ops] == [
        (op.type, op.inputs, op.outputs) for op in ops
    ]


def test_an_identity_of_the_model_is_a_node():
    ops = [Op("Identity", "i", (Operand("x", BYTES),), ("i",)), Op("Relu", "r", (Operand("i", FINER),), ("y",))]
    model = write_qdq(network(ops, Output("y", Operand("y"), shape=("N", 2))))
    assert ("Identity", "i") in kinds(model)
    assert read_qdq(model).ops == tuple(ops)


def test_notes_and_attributes_go_with_the_node():
    op = Op("LeakyRelu", "l", (Operand("x"),), ("y",), {"alpha": 0.5}, metadata={"detent.form": "{}"})
    again = read_qdq(write_qdq(network([op], Output("y", Operand("y"), shape=("N", 2)))))
    assert again.ops == (op,)
    assert again.ops[0].attributes == {"alpha": 0.5}
    assert again.ops[0].metadata == {"detent.form": "{}"}


def test_graphs_inside_read_what_is_outside():
    """Of a tensor that others read on a grid, and of one that is on a grid itself."""
    text = """
    <ir_version: 10, opset_import: ["": 21]>
    net (bool c, float[2] x) => (float[2] y)
    <float s = {0.5}, uint8 z = {3}>
    {
        q = QuantizeLinear (x, s, z)
        other_name = DequantizeLinear (q, s, z)
        [if] y = If (c) <then_branch = a () => (float[2] t) { t = Relu (other_name) },
                         else_branch = b () => (float[2] e) { e = Neg (x) }>
    }
    """
    model = parser.parse_model(text)
    given = read_qdq(model)
    assert given.ops[0].captured == {"other_name": Operand("x", BYTES), "x": Operand("x")}
    again = write_qdq(given)
    onnx.checker.check_model(again, full_check=True)
    x = np.float32([0.3, -0.4])
    for condition in (True, False):
        feeds = {"c": np.array(condition), "x": x}
        assert run(again, **feeds).tolist() == run(model, **feeds).tolist()


def test_what_no_output_needs_is_left_out():
    ops = [Op("Relu", "r", (Operand("x"),), ("y",)), Op("Neg", "unused", (Operand("k"),), ("k2",))]
    given = network(ops, Output("y", Operand("y")), constants={"k": np.float32(1)}).pruned()
    assert [op.name for op in given.ops] == ["r"]
    assert not given.constants


def test_metadata_that_is_not_ours_is_refused():
    relu = Op("Relu", "relu", (Operand("x", BYTES),), ("y",))
    model = write_qdq(network([relu], Output("y", Operand("y"), shape=("N", 2))))
    helper.set_model_props(model, {"detent.stored_as": '{"a": 5}'})
    with pytest.raises(DeployError, match="not what Detent writes"):
        read_qdq(model)

"""Reading QDQ models, ours and anyone's: Q and DQ dissolve into what each operation reads."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from detent.errors import DeployError
from detent.ir import Encoding, Network, Op, Operand, Output, Port, StoredAs, read_qdq
from detent.targets.arithmetics import ARITHMETICS
from detent.twin import Twin

RANDOM = np.random.default_rng(0)


def held(name: str, value) -> onnx.TensorProto:
    return numpy_helper.from_array(np.asarray(value), name)


def model_of(nodes, initializers=(), inputs=None, outputs=None, opset: int = 21) -> onnx.ModelProto:
    graph = helper.make_graph(
        nodes,
        "net",
        inputs or [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 4])],
        outputs or [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["N", "M"])],
        list(initializers),
    )
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)
    onnx.checker.check_model(made)
    return made


def q(source: str, name: str) -> onnx.NodeProto:
    return helper.make_node("QuantizeLinear", [source, f"{name}_s", f"{name}_z"], [f"{name}_q"], name=f"{name}/q")


def dq(name: str, given: str | None = None) -> onnx.NodeProto:
    inputs = [f"{name}_q", f"{name}_s", f"{name}_z"]
    return helper.make_node("DequantizeLinear", inputs, [given or f"{name}_dq"], name=f"{given or name}/dq")


def grid(name: str, scale: float, zero_point=np.uint8(3)) -> list[onnx.TensorProto]:
    return [held(f"{name}_s", np.float32(scale)), held(f"{name}_z", zero_point)]


HALF = Encoding(np.float32(0.5), np.int64(3), "uint8")
QUARTER = Encoding(np.float32(0.25), np.int64(3), "uint8")


def test_a_pair_becomes_a_read():
    model = model_of([q("x", "x"), dq("x"), helper.make_node("Relu", ["x_dq"], ["y"], name="r")], grid("x", 0.5))
    graph = read_qdq(model)
    assert [(op.type, op.name, op.inputs) for op in graph.ops] == [("Relu", "r", (Operand("x", HALF),))]
    assert graph.inputs["x"].shape == ("N", 4)
    assert graph.outputs[0].read == Operand("y")
    assert graph.grid_of("x") == HALF
    assert graph.opset == 21


def test_two_readers_share_a_dequantize():
    nodes = [q("x", "x"), dq("x"), helper.make_node("Add", ["x_dq", "x_dq"], ["y"], name="a")]
    graph = read_qdq(model_of(nodes, grid("x", 0.5)))
    assert graph.ops[0].inputs == (Operand("x", HALF), Operand("x", HALF))


def test_the_encoding_belongs_to_the_read():
    nodes = [
        *(q("x", "x"), dq("x"), helper.make_node("Relu", ["x_dq"], ["a"], name="one")),
        *(helper.make_node("Sigmoid", ["x"], ["b"], name="two"),),
        helper.make_node("Add", ["a", "b"], ["y"], name="sum"),
    ]
    graph = read_qdq(model_of(nodes, grid("x", 0.5)))
    assert graph.encodings("x") == (HALF, None)
    assert graph.grid_of("x") is None


def test_a_pair_behind_a_pair_requantizes():
    """Q-DQ-Q-DQ: an operation that takes the first grid and gives what is put on the second."""
    nodes = [*(q("x", "x"), dq("x"), q("x_dq", "z"), dq("z")), helper.make_node("Relu", ["z_dq"], ["y"], name="r")]
    graph = read_qdq(model_of(nodes, [*grid("x", 0.5), *grid("z", 0.25)]))
    assert [(op.type, op.inputs) for op in graph.ops] == [
        ("Identity", (Operand("x", HALF),)),
        ("Relu", (Operand("x_dq", QUARTER),)),
    ]


def test_only_who_requantizes_reads_the_real_numbers():
    """The product reads the first grid itself, as an engine does, whoever else puts the same numbers on another one."""
    nodes = [q("x", "x"), dq("x"), q("x_dq", "again"), dq("again")]
    nodes.append(helper.make_node("Mul", ["x_dq", "again_dq"], ["y"], name="m"))
    graph = read_qdq(model_of(nodes, grid("x", 0.5) + grid("again", 0.25)))
    assert [(op.type, op.inputs) for op in graph.ops] == [
        ("Identity", (Operand("x", HALF),)),
        ("Mul", (Operand("x", HALF), Operand("x_dq", QUARTER))),
    ]


def test_a_clip_of_the_network_reads_the_grid_before_it():
    nodes = [q("x", "x"), dq("x"), helper.make_node("Clip", ["x_dq", "low", "high"], ["c"], name="c")]
    nodes += [q("c", "c"), dq("c", "y")]
    bounds = [held("low", np.float32(0)), held("high", np.float32(6))]
    graph = read_qdq(model_of(nodes, grid("x", 0.5) + grid("c", 0.25) + bounds))
    assert [(op.type, op.inputs[0]) for op in graph.ops] == [("Clip", Operand("x", HALF))]


def test_a_constant_that_is_quantized_when_the_model_runs_has_constant_codes():
    w = np.array([1.0, -0.5, 0.2, 200.0], np.float32)
    nodes = [q("w", "w"), dq("w"), helper.make_node("Mul", ["x", "w_dq"], ["y"], name="m")]
    graph = read_qdq(model_of(nodes, [held("w", w), *grid("w", 0.5)]))
    read = graph.ops[0].inputs[1]
    assert read == Operand("w", HALF)
    assert graph.constants["w"].tolist() == [5, 2, 3, 255]  # ties to even, then saturated
    assert "w" in graph.coded


def test_integers_may_come_in_and_go_out():
    nodes = [dq("x"), helper.make_node("Relu", ["x_dq"], ["r"], name="r"), q("r", "y")]
    model = model_of(
        nodes,
        [*grid("x", 0.5), *grid("y", 0.25)],
        [helper.make_tensor_value_info("x_q", TensorProto.UINT8, ["N", 4])],
        [helper.make_tensor_value_info("y_q", TensorProto.UINT8, ["N", 4])],
    )
    graph = read_qdq(model)
    assert graph.inputs["x_q"].dtype == "uint8"
    assert graph.coded == {"x_q"}
    assert graph.ops[0].inputs == (Operand("x_q", HALF),)
    assert (graph.outputs[0].read, graph.outputs[0].as_codes) == (Operand("r", QUARTER), True)
    codes = np.array([[0, 3, 5, 255]], np.uint8)
    given = Twin(graph, ARITHMETICS["onnx_spec"]()).run({"x_q": codes})["y_q"]
    assert given.tolist() == [[3, 3, 7, 255]]


def test_without_a_zero_point_codes_are_unsigned():
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "s"], ["c"], name="q"),
        helper.make_node("DequantizeLinear", ["c", "s"], ["d"], name="d"),
        helper.make_node("Relu", ["d"], ["y"], name="r"),
    ]
    graph = read_qdq(model_of(nodes, [held("s", np.float32(0.5))]))
    assert graph.ops[0].inputs[0].encoding == Encoding(np.float32(0.5), np.int64(0), "uint8")


def test_scales_along_an_axis_and_in_blocks():
    codes = held("w_q", RANDOM.integers(-8, 8, (4, 6)).astype(np.int8))
    along = helper.make_node("DequantizeLinear", ["w_q", "w_s"], ["w"], name="w/dq", axis=1)
    matmul = helper.make_node("MatMul", ["x", "w"], ["y"], name="m")
    graph = read_qdq(model_of([along, matmul], [codes, held("w_s", np.arange(1, 7, dtype=np.float32))]))
    assert graph.ops[0].inputs[1].encoding.axis == 1
    blocks = helper.make_node("DequantizeLinear", ["w_q", "w_s"], ["w"], name="w/dq", axis=0, block_size=2)
    graph = read_qdq(model_of([blocks, matmul], [codes, held("w_s", np.ones((2, 6), np.float32))]))
    found = graph.ops[0].inputs[1].encoding
    assert (found.axis, found.block, found.scale.shape) == (0, 2, (2, 6))


@pytest.mark.parametrize(
    "value", [{"value_float": 0.5}, {"value": helper.make_tensor("t", TensorProto.FLOAT, [], [0.5])}]
)
def test_scales_may_be_constant_nodes(value):
    nodes = [
        helper.make_node("Constant", [], ["x_s"], name="s", **value),
        *(q("x", "x"), dq("x"), helper.make_node("Relu", ["x_dq"], ["y"], name="r")),
    ]
    graph = read_qdq(model_of(nodes, grid("x", 0.5)[1:]))
    assert graph.ops[0].inputs == (Operand("x", HALF),)


def test_a_clip_of_the_network_is_no_bound_of_a_grid():
    nodes = [
        helper.make_node("Clip", ["x", "lo", "hi"], ["relu6"], name="c"),
        *(q("relu6", "r"), dq("r"), helper.make_node("Sigmoid", ["r_dq"], ["y"], name="s")),
    ]
    bounds = [held("lo", np.float32(0)), held("hi", np.float32(6))]
    graph = read_qdq(model_of(nodes, [*bounds, *grid("r", 0.5)]))
    assert [op.type for op in graph.ops] == ["Clip", "Sigmoid"]
    assert graph.ops[1].inputs[0].encoding.full


def test_what_no_output_needs_is_left_out():
    nodes = [helper.make_node("Relu", ["x"], ["y"], name="r"), helper.make_node("Exp", ["x"], ["unread"], name="e")]
    assert [op.name for op in read_qdq(model_of(nodes)).ops] == ["r"]


def test_what_is_asked_of_inputs_and_outputs():
    x, weight = Operand("x"), Operand("w")
    named, unnamed = Op("Gemm", "fc", (x, weight, None), ("h",)), Op("Add", "", (Operand("h"), weight), ("y",))
    network = Network(
        {"x": Port("float32", (1, 2))},
        (Output("out", Operand("y")), Output("again", Operand("y")), Output("inner", Operand("h"))),
        (named, unnamed),
        {"w": np.ones((2, 2), np.float32)},
        frozenset(),
        {},
        17,
    )
    assert [named.optional(place) for place in range(4)] == [x, weight, None, None]
    assert (named.label, unnamed.label) == ("fc", "y")
    assert [network.is_constant(read) for read in (weight, x, None)] == [True, False, False]
    assert network.output_tensors == {"y", "h"}


# ---- what is refused ----


def test_tensors_may_be_renamed_and_outputs_keep_their_names():
    grid = Encoding(np.float32(0.5), np.int64(0), "int8")
    op = Op("Gemm", "fc", (Operand("x", grid), Operand("w", grid), None), ("y",))
    network = Network(
        {"x": Port("float32", (1, 2))},
        (Output("y", Operand("y", grid)),),
        (op,),
        {"w": np.ones((2, 3), np.int8)},
        frozenset(["w"]),
        {"x": (1, 2), "y": (1, 3)},
        17,
        stored_as={"w": StoredAs("fc.weight")},
    )
    found = network.renamed({"w": "v", "y": "y_unquantized"})
    assert found.ops == (Op("Gemm", "fc", (Operand("x", grid), Operand("v", grid), None), ("y_unquantized",)),)
    assert found.outputs == (Output("y", Operand("y_unquantized", grid)),)
    assert (found.coded, found.stored_as) == (frozenset(["v"]), {"v": StoredAs("fc.weight")})
    assert found.shapes == {"x": (1, 2), "y_unquantized": (1, 3)}
    assert list(found.constants) == ["v"]
    assert network.renamed({}) is network


def test_a_pair_that_disagrees_is_refused_by_name():
    nodes = [
        q("x", "x"),
        helper.make_node("DequantizeLinear", ["x_q", "other", "x_z"], ["d"], name="wrong"),
        helper.make_node("Relu", ["d"], ["y"], name="r"),
    ]
    with pytest.raises(DeployError, match="read the tensor 'x'") as caught:
        read_qdq(model_of(nodes, [*grid("x", 0.5), held("other", np.float32(0.25))]))
    assert "'wrong'" in caught.value.found


def test_a_computed_scale_is_refused():
    nodes = [
        helper.make_node("DynamicQuantizeLinear", ["x"], ["c", "s", "z"], name="dynamic"),
        helper.make_node("DequantizeLinear", ["c", "s", "z"], ["d"], name="d"),
        helper.make_node("Relu", ["d"], ["y"], name="r"),
    ]
    with pytest.raises(DeployError, match="DynamicQuantizeLinear"):
        read_qdq(model_of(nodes))


def test_operations_on_integers_are_refused():
    """The QOperator form: it is another one than QDQ."""
    nodes = [
        q("x", "x"),
        helper.make_node("MatMulInteger", ["x_q", "w"], ["acc"], name="integer product"),
        helper.make_node("Cast", ["acc"], ["y"], name="c", to=TensorProto.FLOAT),
    ]
    with pytest.raises(DeployError, match="a MatMulInteger node 'integer product' computes with them"):
        read_qdq(model_of(nodes, [*grid("x", 0.5), held("w", np.ones((4, 2), np.uint8))]))


# ---- what ONNX Runtime's own quantizer writes ----


@pytest.fixture(scope="module")
def foreign(tmp_path_factory):
    """conv - relu - conv, add, pool, gemm, quantized by onnxruntime.quantization."""
    quantization = pytest.importorskip("onnxruntime.quantization", reason="it needs onnxruntime's quantization tools")
    folder = tmp_path_factory.mktemp("foreign")

    def weight(name, *shape):
        return held(name, (RANDOM.standard_normal(shape) * 0.3).astype(np.float32))

    nodes = [
        helper.make_node("Conv", ["image", "w1", "b1"], ["c1"], name="conv1", pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["c1"], ["r1"], name="relu1"),
        helper.make_node("Conv", ["r1", "w2"], ["c2"], name="conv2", pads=[1, 1, 1, 1]),
        helper.make_node("Add", ["c2", "r1"], ["sum"], name="add"),
        helper.make_node("GlobalAveragePool", ["sum"], ["pooled"], name="pool"),
        helper.make_node("Flatten", ["pooled"], ["flat"], name="flatten"),
        helper.make_node("Gemm", ["flat", "w3", "b3"], ["scores"], name="fc", transB=1),
    ]
    constants = [weight("w1", 4, 3, 3, 3), weight("b1", 4), weight("w2", 4, 4, 3, 3), weight("w3", 5, 4)]
    graph = helper.make_graph(
        nodes,
        "net",
        [helper.make_tensor_value_info("image", TensorProto.FLOAT, ["N", 3, 8, 8])],
        [helper.make_tensor_value_info("scores", TensorProto.FLOAT, ["N", 5])],
        [*constants, weight("b3", 5)],
    )
    plain = folder / "float.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), str(plain))
    data = RANDOM.standard_normal((8, 3, 8, 8)).astype(np.float32)

    class Reader(quantization.CalibrationDataReader):
        def __init__(self):
            self.waiting = iter([{"image": data}])

        def get_next(self):
            return next(self.waiting, None)

    made = folder / "qdq.onnx"
    quantization.quantize_static(
        str(plain),
        str(made),
        Reader(),
        quant_format=quantization.QuantFormat.QDQ,
        per_channel=True,
        weight_type=quantization.QuantType.QInt8,
        activation_type=quantization.QuantType.QUInt8,
    )
    return onnx.load_model(str(made)), data


def test_a_model_of_onnx_runtimes_quantizer_is_read(foreign):
    model, _ = foreign
    graph = read_qdq(model)
    assert not {"QuantizeLinear", "DequantizeLinear"} & {op.type for op in graph.ops}
    conv = next(op for op in graph.ops if op.type == "Conv")
    assert [read.encoding is not None for read in conv.inputs] == [True, True, True]
    assert conv.inputs[1].encoding.axis == 0
    assert conv.inputs[2].encoding.dtype == "int32"


def test_the_twin_gives_what_onnx_runtime_gives_for_it(foreign):
    """Anyone's model: integer for integer."""
    import onnxruntime

    model, data = foreign
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    wanted = session.run(None, {"image": data})[0]
    found = Twin(read_qdq(model), ARITHMETICS["onnxruntime"]()).run({"image": data})["scores"]
    assert np.array_equal(found, wanted)

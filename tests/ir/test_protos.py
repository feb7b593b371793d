"""Reading ONNX messages."""

import numpy as np
from onnx import TensorProto, helper, numpy_helper

from detent.ir.protos import all_tensors, constant_tensors


def test_constants_are_initializers_and_tensors_of_constant_nodes():
    stored, held = (numpy_helper.from_array(np.float32([number])) for number in (1, 2))
    stored.name = "stored"
    graph = helper.make_graph(
        [
            helper.make_node("Constant", [], ["held"], value=held),
            helper.make_node("Constant", [], ["number"], value_float=3.0),
            helper.make_node("Add", ["stored", "held"], ["y"]),
        ],
        "net",
        [],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1])],
        [stored],
    )
    found = constant_tensors(graph)
    assert {name: numpy_helper.to_array(tensor).item() for name, tensor in found.items()} == {"stored": 1, "held": 2}


def test_tensors_are_found_wherever_a_model_may_hold_them():
    def named(name):
        tensor = numpy_helper.from_array(np.float32([1]))
        tensor.name = name
        return tensor

    def graph(name, *nodes):
        return helper.make_graph(nodes, name, [], [], [named(f"{name}.stored")])

    def constant(name):
        return helper.make_node("Constant", [], [name], value=named(name))

    pair = helper.make_sparse_tensor(named("sparse.values"), named("sparse.indices"), [1])
    sparse = helper.make_node("Constant", [], ["sparse"], sparse_value=pair)
    branch = helper.make_node(
        "If", ["c"], ["y"], then_branch=graph("then", constant("inner")), else_branch=graph("else")
    )
    function = helper.make_function("own", "F", [], ["y"], [branch], [helper.make_opsetid("", 21)])
    model = helper.make_model(graph("main", constant("held"), sparse), functions=[function])
    found = sorted(tensor.name for tensor in all_tensors(model))
    assert found == [
        "else.stored", "held", "inner", "main.stored", "sparse.indices", "sparse.values", "then.stored"
    ]  # fmt: skip

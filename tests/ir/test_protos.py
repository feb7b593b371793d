"""Reading ONNX messages."""

import numpy as np
from onnx import TensorProto, helper, numpy_helper

from detent.ir.protos import constant_tensors


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

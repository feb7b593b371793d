"""One quantized operation as a network, with scales that are powers of two: floats compute it without rounding."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime
from onnx import helper, numpy_helper

from detent.ir import Network, Op, read_qdq, write_qdq

Array = npt.NDArray[Any]

X, Y, RELU = ("x", 2.0**-4, 117), ("y", 2.0**-2, 131), ("y", 2.0**-2, 0)


class Writing:
    """Nodes and constants of a QDQ model with one input `x` and one output `y`, both on grids of uint8."""

    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.constants: list[onnx.TensorProto] = []
        self.values: list[onnx.ValueInfoProto] = []

    def constant(self, name: str, value: Any) -> str:
        self.constants.append(numpy_helper.from_array(np.asarray(value), name))
        return name

    def node(self, op: str, inputs: list[str], output: str, **attributes: Any) -> str:
        self.nodes.append(helper.make_node(op, inputs, [output], name=output, **attributes))
        return output

    def on_grid(self, tensor: str, scale: float, zero_point: int) -> str:
        grid = [self.constant(f"{tensor}_s", np.float32(scale)), self.constant(f"{tensor}_z", np.uint8(zero_point))]
        codes = self.node("QuantizeLinear", [tensor, *grid], f"{tensor}_q")
        return self.node("DequantizeLinear", [codes, *grid], f"{tensor}_d")

    def coded(self, name: str, codes: Array, scale: Array, axis: int) -> str:
        held = [
            self.constant(f"{name}_quantized", codes),
            self.constant(f"{name}_scale", scale.astype(np.float32)),
            self.constant(f"{name}_zero_point", np.zeros(scale.shape, codes.dtype)),
        ]
        return self.node("DequantizeLinear", held, name, **({"axis": axis} if scale.ndim else {}))

    def known(self, name: str, shape: tuple[int | str, ...]) -> None:
        """Say the shape of a tensor inside."""
        self.values.append(helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, shape))

    def network(self, shape: tuple[int | str, ...], output: str) -> Network:
        inputs = [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, shape)]
        outputs = [helper.make_tensor_value_info(output, onnx.TensorProto.FLOAT, None)]
        graph = helper.make_graph(self.nodes, "one", inputs, outputs, self.constants, value_info=self.values)
        return read_qdq(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10))


def run(network: Network, x: Array) -> Array:
    """In ONNX Runtime, without saturation on any CPU."""
    options = onnxruntime.SessionOptions()
    options.add_session_config_entry("session.x64quantprecision", "1")
    options.log_severity_level = 3
    content = write_qdq(network).SerializeToString()
    session = onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    found: Array = session.run(None, {"x": x})[0]
    return found


def types(network: Network) -> list[str]:
    """The operations, in their order."""
    return [op.type for op in network.ops]


def only(network: Network, op_type: str) -> Op:
    """The one operation of a type."""
    (found,) = (op for op in network.ops if op.type == op_type)
    return found

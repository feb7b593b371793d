"""A QDQ network rewritten so that operations take codes: the parts that do not depend on the operation.

A tensor exists as codes, as real numbers, or as both; what an operation asks for and is not there yet is made by a
QuantizeLinear or a DequantizeLinear.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import helper, numpy_helper

from detent.ir import Encoding, Network, Op, Operand, TensorNames, clip_bounds, sole_float_reader
from detent.ir.qparams import BOUNDS

__all__ = ["Kernel", "QLinearBuilder"]

Array = npt.NDArray[Any]


class QLinearBuilder:
    """One rewriting. `kernels` write, for a type of operation, the one that gives codes, or say that they cannot.

    `float_ops` are those that read codes and nevertheless compute on real numbers.
    """

    def __init__(self, graph: Network, kernels: Mapping[str, Kernel]):
        self.graph = graph
        self.float_ops: list[str] = []
        self._kernels = kernels
        self._nodes: list[onnx.NodeProto] = []
        self._initializers: dict[str, onnx.TensorProto] = {}
        self._codes: dict[tuple[str, Encoding], str] = {}
        self._reals: dict[tuple[str, Encoding], str] = {}
        self._scales: dict[tuple[str, Encoding], list[str]] = {}
        self._fused: set[str] = set()
        ends = (*graph.inputs, *graph.constants, *(output.name for output in graph.outputs))
        self._names = TensorNames([*ends, *(name for op in graph.ops for name in op.outputs)])

    def model(self, ir_version: int) -> onnx.ModelProto:
        for op in self.graph.ops:
            if op.name not in self._fused and not self._on_codes(op):
                self._in_float(op)
        outputs = [self._output(output.name, output.read, output.as_codes) for output in self.graph.outputs]
        used = {name for node in self._nodes for name in node.input}
        graph = helper.make_graph(
            self._nodes,
            "qlinear",
            [_value_info(name, port.dtype, port.shape) for name, port in self.graph.inputs.items()],
            outputs,
            [initializer for name, initializer in self._initializers.items() if name in used],
        )
        domains = [helper.make_opsetid("", self.graph.opset), helper.make_opsetid("com.microsoft", 1)]
        return helper.make_model(graph, opset_imports=domains, ir_version=ir_version)

    def node(self, op_type: str, inputs: list[str], output: str, *, name: str, domain: str = "", **more: Any) -> str:
        self._nodes.append(helper.make_node(op_type, inputs, [output], name=name, domain=domain, **more))
        return output

    def constant(self, name: str, value: Array) -> str:
        self._initializers[name] = numpy_helper.from_array(np.asarray(value), name)
        return name

    def fresh(self, name: str) -> str:
        """An unused tensor name."""
        return self._names.unique(name)

    def codes(self, read: Operand) -> str:
        """The tensor with the codes of a quantized operand."""
        encoding = read.encoding
        assert encoding is not None, read
        key = (read.tensor, encoding)
        if key not in self._codes:
            if read.tensor in self.graph.coded:
                if read.tensor in self.graph.constants:
                    self.constant(read.tensor, self.graph.constants[read.tensor].astype(encoding.dtype))
                self._codes[key] = read.tensor
            else:
                made = self.fresh(f"{read.tensor}_quantized")
                inputs = [self._float(read.tensor), *self.scale(read)]
                self.node("QuantizeLinear", inputs, made, name=made, **_axis(encoding))
                self._codes[key] = self.within(made, encoding.qmin, encoding.qmax, encoding)
        return self._codes[key]

    def scale(self, read: Operand) -> list[str]:
        """The names of scale and zero point."""
        encoding = read.encoding
        assert encoding is not None, read
        key = (read.tensor, encoding)
        if key not in self._scales:
            zero_point = np.asarray(encoding.zero_point).astype(encoding.dtype)
            self._scales[key] = [
                self.constant(self.fresh(f"{read.tensor}_scale"), encoding.scale),
                self.constant(self.fresh(f"{read.tensor}_zero_point"), zero_point),
            ]
        return self._scales[key]

    def within(self, codes: str, least: int, greatest: int, encoding: Encoding) -> str:
        """`codes` with those outside of the bounds moved onto them; nothing is done if the type has no others."""
        if (least, greatest) == BOUNDS[encoding.dtype]:
            return codes
        bounds = [
            self.constant(self.fresh(f"{codes}_{end}"), np.array(at, encoding.dtype))
            for end, at in (("least", least), ("greatest", greatest))
        ]
        clipped = self.fresh(f"{codes}_clipped")
        return self.node("Clip", [codes, *bounds], clipped, name=clipped)

    def _on_codes(self, op: Op) -> bool:
        """Write `op` as an operator that returns codes; False if there is none, or its readers need more than one
        grid."""
        kernel = self._kernels.get(op.type)
        if kernel is None or op.domain or len(op.outputs) != 1:
            return False
        end, clipping = op.outputs[0], self._clipping_of(op)
        if clipping is not None:
            end = clipping.outputs[0]
        encoding = self.graph.grid_of(end)
        if encoding is None:
            return False
        made = kernel(self, op, Operand(end, encoding))
        if made is None:
            return False
        least, greatest = encoding.qmin, encoding.qmax
        if clipping is not None:
            self._fused.add(clipping.name)
            limits = clip_bounds(self.graph, clipping)
            assert limits is not None
            # Rounding is monotone, so clipping commutes with quantizing.
            least, greatest = (int(encoding.quantize(np.array(limit, np.float32))) for limit in limits)
        self._codes[(end, encoding)] = self.within(made, least, greatest, encoding)
        return True

    def _clipping_of(self, op: Op) -> Op | None:
        """The ReLU or Clip that is the only reader of the output of `op` and returns codes."""
        clipping = sole_float_reader(self.graph, op.outputs[0])
        if clipping is None:
            return None
        encoding = self.graph.grid_of(clipping.outputs[0])
        fits = encoding is not None and encoding.per_tensor
        return clipping if fits and clip_bounds(self.graph, clipping) is not None else None

    def _in_float(self, op: Op) -> None:
        if any(read is not None and read.encoding is not None for read in op.inputs):
            self.float_ops.append(op.name)
        inputs = [self._real(read) if read is not None else "" for read in op.inputs]
        self._nodes.append(
            helper.make_node(op.type, inputs, list(op.outputs), name=op.name, domain=op.domain, **op.onnx_attributes)
        )

    def _real(self, read: Operand) -> str:
        """The tensor with the real numbers of an operand."""
        if read.encoding is None:
            return self._float(read.tensor)
        key = (read.tensor, read.encoding)
        if key not in self._reals:
            made = self.fresh(f"{read.tensor}_dequantized")
            self._reals[key] = self._dequantize(read, read.encoding, made)
        return self._reals[key]

    def _dequantize(self, read: Operand, encoding: Encoding, output: str) -> str:
        inputs = [self.codes(read), *self.scale(read)]
        return self.node("DequantizeLinear", inputs, output, name=output, **_axis(encoding))

    def _float(self, tensor: str) -> str:
        if tensor in self.graph.constants:
            self.constant(tensor, self.graph.constants[tensor])
        return tensor

    def _output(self, name: str, read: Operand, as_codes: bool) -> onnx.ValueInfoProto:
        dtype = "float32"
        if read.encoding is not None and as_codes:
            dtype = read.encoding.dtype
            self.node("Identity", [self.codes(read)], name, name=name)
        elif read.encoding is not None:
            self._dequantize(read, read.encoding, name)
        elif read.tensor != name:
            self.node("Identity", [self._float(read.tensor)], name, name=name)
        return _value_info(name, dtype, self.graph.shapes.get(name) or self.graph.shapes.get(read.tensor))


Kernel = Callable[[QLinearBuilder, Op, Operand], "str | None"]
"""Gets the builder, the operation, and what is to be given: a tensor on a grid. Gives the tensor of codes it wrote."""


def _axis(encoding: Encoding) -> dict[str, Any]:
    block = {} if encoding.block is None else {"block_size": encoding.block}
    return block if encoding.axis is None else {"axis": encoding.axis, **block}


def _value_info(name: str, dtype: str, shape: tuple[int | str, ...] | None) -> onnx.ValueInfoProto:
    elem_type = onnx.TensorProto.FLOAT if dtype == "float32" else onnx.TensorProto.DataType.Value(dtype.upper())
    return helper.make_tensor_value_info(name, elem_type, shape)

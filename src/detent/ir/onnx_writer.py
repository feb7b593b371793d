"""Writes a `Network` as a QDQ ONNX model: `read_qdq` gives the same network again."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper, numpy_helper

from detent.ir.metadata import CODE_RANGE, ROLE, write_stored_as
from detent.ir.names import TensorNames
from detent.ir.network import Network, Op, Operand
from detent.ir.patterns import requantizes
from detent.ir.qparams import Encoding

__all__ = ["write_qdq"]

_PACKED = ("int4", "uint4", "int2", "uint2")  # types that numpy does not have


def write_qdq(network: Network) -> onnx.ModelProto:
    """`network` as ONNX, with a QuantizeLinear and a DequantizeLinear behind every tensor that is read on a grid.

    Operations, tensors, inputs and outputs keep their names. A tensor `x` that is read on a grid is `x_quantized` as
    codes and `x_dequantized` behind them; a constant `w` that holds codes is `w` behind its DequantizeLinear.
    """
    return _Writer(network).model()


class _Writer:
    """One writing of a network; `model` is the result."""

    def __init__(self, network: Network):
        self._network = network
        tensors = [name for op in network.ops for name in (op.name, *op.outputs)]
        taken = [*tensors, *network.inputs, *network.constants, *(output.name for output in network.outputs)]
        self._names = TensorNames(taken, ".")
        self._nodes: list[onnx.NodeProto] = []
        self._initializers: dict[str, onnx.TensorProto] = {}
        self._qparams: dict[tuple[str, Encoding], list[str]] = {}
        self._real: dict[Operand, str] = {}  # the float tensor of an operand
        self._asked: dict[Operand, str] = {}  # names that outputs, and operations that requantize, ask for
        for op in network.ops:
            if requantizes(network, op):
                self._asked.setdefault(op.reads[0], op.outputs[0])
        for output in reversed(network.outputs):  # the first of those that read the same
            if output.read.encoding is not None and not output.as_codes:
                self._asked[output.read] = output.name

    def model(self) -> onnx.ModelProto:
        network = self._network
        for name in network.inputs:
            self._quantize(name)
        for op in network.ops:
            if requantizes(network, op):
                self._real[Operand(op.outputs[0])] = self._read(op.reads[0])
            else:
                self._add(op)
            for name in op.outputs:
                self._quantize(name)
        outputs = [self._output(index) for index in range(len(network.outputs))]
        made = {name for node in self._nodes for name in node.output} - {value.name for value in outputs}
        values = [
            _value_info(name, dtype, network.shapes[name])
            for name, dtype in network.dtypes.items()
            if name in made and name in network.shapes
        ]
        inputs = [_value_info(name, port.dtype, port.shape) for name, port in network.inputs.items()]
        model = helper.make_model(
            helper.make_graph(self._nodes, network.name, inputs, outputs, value_info=values),
            opset_imports=[
                helper.make_opsetid("", network.opset),
                *(helper.make_opsetid(domain, version) for domain, version in network.domains.items()),
            ],
            ir_version=8 if network.opset < 19 else 10,
            producer_name="detent",
        )
        for name in list(self._initializers):  # both functions copy their arguments: weights only once
            model.graph.initializer.append(self._initializers.pop(name))
        constants = {name: one for name, one in network.stored_as.items() if name in network.constants}
        write_stored_as(model, constants)
        return model

    # --- operations

    def _add(self, op: Op) -> None:
        inputs = ["" if read is None else self._read(read) for read in op.inputs]
        renamed = {name: real for name, read in op.captured.items() if (real := self._read(read)) != name}
        attributes = {name: _inner(value, renamed) for name, value in op.onnx_attributes.items()}
        self._node(op.type, inputs, op.outputs, op.name, domain=op.domain, metadata=op.metadata, **attributes)

    def _node(
        self,
        op_type: str,
        inputs: Sequence[str],
        outputs: Sequence[str],
        name: str,
        *,
        domain: str = "",
        metadata: Mapping[str, str] | None = None,
        **attributes: Any,
    ) -> None:
        node = helper.make_node(op_type, inputs, outputs, name=name, domain=domain, **attributes)
        for key, value in (metadata or {}).items():
            node.metadata_props.add(key=key, value=value)
        self._nodes.append(node)

    def _read(self, read: Operand) -> str:
        """The float tensor of an operand; constants and coded inputs are written on demand."""
        if read not in self._real:
            self._real[read] = self._stored(read) if read.encoding is None else self._dequantized(read, read.encoding)
        return self._real[read]

    def _stored(self, read: Operand) -> str:
        if read.tensor in self._network.constants:
            self._constant(read.tensor, self._network.constants[read.tensor])
        return read.tensor

    def _dequantized(self, read: Operand, encoding: Encoding) -> str:
        """The output of a DequantizeLinear of codes that exist: those of a constant or a network input."""
        codes, given = read.tensor, self._asked.get(read) or self._names.unique(f"{read.tensor}_dequantized")
        if read.tensor in self._network.constants:
            codes, given = self._names.unique(f"{read.tensor}_quantized"), self._asked.get(read, read.tensor)
            self._codes(codes, self._network.constants[read.tensor], encoding)
        self._node(
            "DequantizeLinear",
            [codes, *self._params(read.tensor, encoding)],
            [given],
            self._names.unique(f"{read.tensor}/DequantizeLinear"),
            **_axis(encoding),
        )
        return given

    # --- grids

    def _quantize(self, tensor: str) -> None:
        """Put a tensor on every grid on which it is read."""
        if tensor in self._network.coded:
            return
        for encoding in self._network.encodings(tensor):
            if encoding is not None:
                self._quantize_to(Operand(tensor, encoding), encoding)

    def _quantize_to(self, read: Operand, encoding: Encoding) -> None:
        tensor = read.tensor
        source = self._code_range(self._read(Operand(tensor)), tensor, encoding)
        ends = [o.name for o in self._network.outputs if o.as_codes and o.read == read]
        codes = ends[0] if ends else self._names.unique(f"{tensor}_quantized")
        params, axis = self._params(tensor, encoding), _axis(encoding)
        name = self._names.unique(f"{tensor}/QuantizeLinear")
        self._node("QuantizeLinear", [source, *params], [codes], name, **axis)
        if ends and not self._network.readers(tensor):
            return
        given = self._asked.get(read) or self._names.unique(f"{tensor}_dequantized")
        name = self._names.unique(f"{tensor}/DequantizeLinear")
        self._node("DequantizeLinear", [codes, *params], [given], name, **axis)
        self._real[read] = given

    def _code_range(self, source: str, tensor: str, encoding: Encoding) -> str:
        """The input of a QuantizeLinear, clipped if fewer codes are used than the type has."""
        if encoding.full:
            return source
        bounds = []
        for code, end in ((encoding.qmin, "least"), (encoding.qmax, "most")):
            name = self._names.unique(f"{tensor}_{end}")
            self._constant(name, np.float32((code - encoding.zero_point) * encoding.scale))
            bounds.append(name)
        clipped = self._names.unique(f"{tensor}_clipped")
        name = self._names.unique(f"{tensor}/Clip")
        self._node("Clip", [source, *bounds], [clipped], name, metadata={ROLE: CODE_RANGE})
        return clipped

    def _params(self, tensor: str, encoding: Encoding) -> list[str]:
        """Scale and zero point as constants; a tensor that is put on two grids has two of them."""
        if (tensor, encoding) not in self._qparams:
            scale, zero_point = self._names.unique(f"{tensor}_scale"), self._names.unique(f"{tensor}_zero_point")
            self._constant(scale, encoding.scale)
            self._codes(zero_point, encoding.zero_point, encoding)
            self._qparams[tensor, encoding] = [scale, zero_point]
        return self._qparams[tensor, encoding]

    # --- constants and outputs

    def _constant(self, name: str, array: npt.NDArray[Any] | np.generic) -> None:
        held = np.asarray(array)
        self._initializers[name] = numpy_helper.from_array(np.ascontiguousarray(held).reshape(held.shape), name)

    def _codes(self, name: str, codes: npt.NDArray[Any], encoding: Encoding) -> None:
        """An initializer of the encoding's own integer type."""
        if encoding.dtype in _PACKED:
            elem_type = getattr(TensorProto, encoding.dtype.upper())
            self._initializers[name] = helper.make_tensor(name, elem_type, codes.shape, codes.flatten().tolist())
        else:
            self._constant(name, codes.astype(encoding.dtype))

    def _output(self, index: int) -> onnx.ValueInfoProto:
        output = self._network.outputs[index]
        encoding = output.read.encoding
        if output.as_codes:
            assert encoding is not None
            return _value_info(output.name, encoding.dtype, output.shape)
        given = self._read(output.read)
        if given != output.name:
            self._node("Identity", [given], [output.name], output.name)
        return _value_info(output.name, output.dtype, output.shape)


def _axis(encoding: Encoding) -> dict[str, Any]:
    attributes: dict[str, Any] = {} if encoding.axis is None else {"axis": encoding.axis}
    if encoding.block is not None:
        attributes["block_size"] = encoding.block
    return attributes


def _value_info(name: str, dtype: str, shape: Iterable[int | str] | None) -> onnx.ValueInfoProto:
    elem_type = getattr(TensorProto, {"float32": "FLOAT", "float64": "DOUBLE"}.get(dtype, dtype.upper()))
    sizes = None if shape is None else [None if size == "?" else size for size in shape]
    return helper.make_tensor_value_info(name, elem_type, sizes)


def _inner(value: Any, renamed: Mapping[str, str]) -> Any:
    """An attribute; in a subgraph, the outer tensors are renamed."""
    if not isinstance(value, onnx.GraphProto) or not renamed:
        return value
    made = onnx.GraphProto()
    made.CopyFrom(value)
    _rename(made, renamed)
    return made


def _rename(graph: onnx.GraphProto, renamed: Mapping[str, str]) -> None:
    for node in graph.node:
        node.input[:] = [renamed.get(name, name) for name in node.input]
        for attribute in node.attribute:
            if attribute.HasField("g"):
                _rename(attribute.g, renamed)
    for value in graph.output:
        value.name = renamed.get(value.name, value.name)

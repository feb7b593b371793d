"""Reads a QDQ ONNX model, ours or anyone's, into a `Network`."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import numpy_helper

from detent.errors import DeployError, refusing
from detent.ir.attributes import attribute_value, changed_defaults
from detent.ir.metadata import REQUANTIZE, ROLE, is_code_range, read_stored_as
from detent.ir.network import Network, Op, Operand, Output, Port
from detent.ir.one_node import captured_names
from detent.ir.qparams import BOUNDS, Encoding
from detent.ir.shapes import shapes_of

__all__ = ["read_qdq"]

Array = npt.NDArray[Any]


def read_qdq(model: onnx.ModelProto) -> Network:
    """The network of `model`, with Q and DQ folded into operands."""
    return _Reader(model).graph()


class _Reader:
    """One reading of a model; `graph` is the result."""

    def __init__(self, model: onnx.ModelProto):
        self._model, self._graph = model, model.graph
        self._opset = next((o.version for o in model.opset_import if o.domain in ("", "ai.onnx")), 1)
        self._shapes = shapes_of(model)
        self._arrays = {i.name: _array(i) for i in self._graph.initializer}
        self._types = {i.name: _type_name(i.data_type) for i in self._graph.initializer}
        for node in self._graph.node:
            if node.op_type == "Constant":
                self._arrays[node.output[0]], self._types[node.output[0]] = _constant(node)
        self._made_by = {name: node for node in self._graph.node for name in node.output}
        self._users: dict[str, list[onnx.NodeProto]] = {}
        for node in self._graph.node:
            for name in node.input:
                self._users.setdefault(name, []).append(node)
        self._coded: set[str] = set()
        self._constants: dict[str, Array] = {}
        self._dissolved: set[str] = set()  # outputs of Clip nodes that belong to a QuantizeLinear

    def graph(self) -> Network:
        given = {value.name for value in self._graph.initializer}
        inputs = {
            value.name: Port(_type_name(value.type.tensor_type.elem_type), self._shapes.get(value.name, ()))
            for value in self._graph.input
            if value.name not in given
        }
        outputs = tuple(self._output(value) for value in self._graph.output)
        ops: list[Op] = []
        for node in self._graph.node:
            if node.op_type == "Constant":
                continue
            if node.op_type == "QuantizeLinear":
                self._require_qdq(node)
                continue  # read by the DequantizeLinear behind it
            if node.op_type == "DequantizeLinear":
                if self._is_requantized(node.output[0]):
                    source, role = self._dequantized(node), {ROLE: REQUANTIZE}
                    ops.append(Op("Identity", node.name, (source,), (node.output[0],), metadata=role))
                continue
            reads = tuple(self._read(name) if name else None for name in node.input)
            said = {a.name: _attribute(a) for a in node.attribute}
            attributes = {**changed_defaults(node.op_type, self._opset), **said}
            metadata = {entry.key: entry.value for entry in node.metadata_props}
            captured = {name: self._read(name) for name in captured_names(node)}
            ops.append(
                Op(node.op_type, node.name, reads, tuple(node.output), attributes, node.domain, metadata, captured)
            )
        # A Clip that only says which codes a QuantizeLinear may give is part of the encoding.
        ops = [op for op in ops if not (op.type == "Clip" and op.outputs[0] in self._dissolved)]
        return Network(
            inputs,
            outputs,
            tuple(ops),
            self._constants,
            frozenset(self._coded),
            self._shapes,
            self._opset,
            name=self._graph.name,
            dtypes={value.name: _type_name(value.type.tensor_type.elem_type) for value in self._graph.value_info},
            stored_as=read_stored_as(self._model),
            domains={o.domain: o.version for o in self._model.opset_import if o.domain not in ("", "ai.onnx")},
        ).pruned()

    def _require_qdq(self, node: onnx.NodeProto) -> None:
        for user in self._users.get(node.output[0], []):
            if user.op_type != "DequantizeLinear":
                raise DeployError(
                    f"read the integers {node.output[0]!r}",
                    f"a {user.op_type} node {user.name!r} computes with them",
                    "give a model in the QDQ form: a DequantizeLinear stands before every operation",
                )

    def _read(self, name: str) -> Operand:
        maker = self._made_by.get(name)
        if maker is not None and maker.op_type == "DequantizeLinear":
            return self._dequantized(maker)
        if name in self._arrays:
            self._constants[name] = self._arrays[name]
        return Operand(name)

    def _dequantized(self, node: onnx.NodeProto) -> Operand:
        """The output of a DequantizeLinear, as an operand of the tensor that was quantized."""
        codes = node.input[0]
        maker = self._made_by.get(codes)
        if maker is None or maker.op_type == "Constant":
            encoding = self._encoding(node, self._types.get(codes) or self._input_type(codes))
            # Constants are called as their real values are, network inputs as the network calls them.
            name = node.output[0] if codes in self._arrays else codes
            if codes in self._arrays:
                held = self._arrays[codes]
                self._constants[name] = held.astype(np.int32 if held.itemsize == 1 else np.int64)
            self._coded.add(name)
            return Operand(name, encoding)
        if maker.op_type != "QuantizeLinear":
            raise DeployError(
                f"read the integers {codes!r}",
                f"they come from a {maker.op_type} node {maker.name!r}",
                "give a model in the QDQ form: integers come from QuantizeLinear or are constants",
            )
        encoding = self._encoding(maker)
        if encoding != self._encoding(node, encoding.dtype):
            raise DeployError(
                f"read the tensor {maker.input[0]!r}",
                f"{maker.name!r} quantizes it with another scale or zero point than {node.name!r} dequantizes",
                "give a model whose QuantizeLinear and DequantizeLinear agree",
            )
        source = maker.input[0]
        if source in self._arrays:  # a constant that is quantized when the model runs: its codes are constant too
            name = source if self._users[source] == [maker] else node.output[0]
            self._constants[name] = encoding.quantize(self._arrays[source])
            self._coded.add(name)
            return Operand(name, encoding)
        clip = self._made_by.get(source)
        bounds = self._clip_of(clip, encoding) if clip is not None and clip.op_type == "Clip" else None
        if clip is not None and bounds is not None:
            self._dissolved.add(source)
            encoding = Encoding(
                encoding.scale, encoding.zero_point, encoding.dtype, encoding.axis, encoding.block, *bounds
            )
            source = clip.input[0]
        return Operand(source, encoding)

    def _clip_of(self, clip: onnx.NodeProto, encoding: Encoding) -> tuple[int, int] | None:
        """The codes a Clip leaves over, if it feeds one QuantizeLinear and its bounds are codes."""
        users = self._users.get(clip.output[0], [])
        if encoding.axis is not None or [user.op_type for user in users] != ["QuantizeLinear"]:
            return None
        if not is_code_range(clip):
            return None  # an activation function of the network
        if len(clip.input) != 3 or not all(name in self._arrays for name in clip.input[1:]):
            return None
        steps = [float(self._arrays[name]) / float(encoding.scale) for name in clip.input[1:]]
        # A bound is a float32, which has 24 bits of which a code may need 16.
        if any(abs(step - round(step)) > max(1e-3, 2.0**-22 * abs(step)) for step in steps):
            return None
        codes = [round(step) + int(encoding.zero_point) for step in steps]
        least, greatest = BOUNDS[encoding.dtype]
        return (codes[0], codes[1]) if least <= codes[0] < codes[1] <= greatest else None

    def _encoding(self, node: onnx.NodeProto, dtype: str | None = None) -> Encoding:
        for name in node.input[1:]:
            if name and name not in self._arrays:
                raise DeployError(
                    f"read {node.op_type} {node.name!r}",
                    f"{name!r} is computed",
                    "give a model whose scales and zero points are constant",
                )
        scale = self._arrays[node.input[1]]
        attributes = {a.name: _attribute(a) for a in node.attribute}
        has_zero = len(node.input) > 2 and bool(node.input[2])
        if dtype is None:
            declared = attribute_value("QuantizeLinear", attributes, "output_dtype")
            dtype = self._types[node.input[2]] if has_zero else _type_name(declared) if declared else "uint8"
        zero_point = self._arrays[node.input[2]].astype(np.int64) if has_zero else np.zeros(scale.shape, np.int64)
        if scale.size == 1 and not attributes.get("block_size"):
            return Encoding(scale.reshape(()), zero_point.reshape(()), dtype)
        axis = attribute_value(node.op_type, attributes, "axis")
        return Encoding(scale, zero_point, dtype, axis, attributes.get("block_size") or None)

    def _output(self, value: onnx.ValueInfoProto) -> Output:
        maker, shape = self._made_by.get(value.name), self._shapes.get(value.name)
        if maker is not None and maker.op_type == "QuantizeLinear":
            return Output(value.name, Operand(maker.input[0], self._encoding(maker)), as_codes=True, shape=shape)
        dtype = _type_name(value.type.tensor_type.elem_type)
        return Output(value.name, self._read(value.name), dtype=dtype, shape=shape)

    def _is_requantized(self, name: str) -> bool:
        """Whether a QuantizeLinear reads the output of a DequantizeLinear, which is a tensor of its own then."""
        return any(
            user.op_type == "QuantizeLinear" or (user.op_type == "Clip" and self._bounds_codes(user))
            for user in self._users.get(name, [])
        )

    def _bounds_codes(self, clip: onnx.NodeProto) -> bool:
        """Whether a Clip belongs to the QuantizeLinear after it."""
        users = self._users.get(clip.output[0], [])
        return any(
            user.op_type == "QuantizeLinear" and self._clip_of(clip, self._encoding(user)) is not None for user in users
        )

    def _input_type(self, name: str) -> str:
        for value in self._graph.input:
            if value.name == name:
                return _type_name(value.type.tensor_type.elem_type)
        raise DeployError(f"read the tensor {name!r}", "nothing in the model computes it", "check the file")


def _array(tensor: onnx.TensorProto) -> Array:
    return np.asarray(numpy_helper.to_array(tensor))


def _constant(node: onnx.NodeProto) -> tuple[Array, str]:
    """The value of a Constant node, and the name of its type."""
    held = node.attribute[0]
    if held.name == "value":
        return _array(held.t), _type_name(held.t.data_type)
    dtype = {"value_float": "float32", "value_floats": "float32", "value_int": "int64", "value_ints": "int64"}
    if held.name not in dtype:
        raise DeployError(f"read the Constant {node.name!r}", f"it has a {held.name}", "give it as a tensor")
    return np.asarray(onnx.helper.get_attribute_value(held), dtype[held.name]), dtype[held.name]


def _type_name(elem_type: int) -> str:
    name = str(onnx.TensorProto.DataType.Name(elem_type)).lower()
    return {"float": "float32", "double": "float64"}.get(name, name)


def _attribute(attribute: onnx.AttributeProto) -> Any:
    with refusing(DeployError, f"read the attribute {attribute.name!r}", "check the file"):
        value = onnx.helper.get_attribute_value(attribute)
        value = value.decode() if isinstance(value, bytes) else value
    if value is None:
        raise DeployError(f"read the attribute {attribute.name!r}", "it has no type, and no value", "check the file")
    if isinstance(value, onnx.TensorProto):
        return _array(value)
    return list(value) if not isinstance(value, (int, float, str, onnx.GraphProto)) else value

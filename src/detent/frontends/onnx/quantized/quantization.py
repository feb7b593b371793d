"""QuantizeLinear and DequantizeLinear: removes pairs from the graph and records their scales."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from onnx import NodeProto
from torch import Tensor, fx, nn

from detent.frontends.onnx.builder import Constant, Value
from detent.frontends.onnx.call import Call, Converter
from detent.frontends.onnx.reading.tensors import TORCH_TYPES, stored_type
from detent.frontends.onnx.source import OnnxEncoding
from detent.graph import kind_of
from detent.ir import attribute_value
from detent.traversal import reachable

__all__ = ["CONVERTERS"]

_COMPUTED = ("uint8", "int8", "int16", "int32")  # as codes, which may go anywhere
_CODES = (*_COMPUTED, "uint16", "uint4", "int4", "uint2", "int2")


def _quantize(call: Call) -> Any:
    """The value itself if only matching DequantizeLinear nodes follow, otherwise codes."""
    encoding, followers = _encoding(call), call.users()
    if encoding is None or not followers or not all(_matches(call, node, encoding) for node in followers):
        return _codes(call, encoding)
    name, value = _tensor(call), call.value(0)
    encoding = _clipped_before(call, encoding)
    if _lacks_relu(call, encoding):
        name = f"{name}_relu"
        value = _relu(call, name)
    call.builder.encodings[name] = encoding
    call.builder.dissolved[call.outputs[0]] = name
    if isinstance(value, Constant):
        snapped = _on_grid(call, value.tensor, encoding)
        call.builder.encodings[name] = _with_least(encoding, snapped, call)
        return replace(value, tensor=snapped) if value.trainable else Constant(snapped, name, learned=False)
    return value


def _clipped_before(call: Call, encoding: OnnxEncoding) -> OnnxEncoding:
    """Whether a Clip stands before it: deployed models have one where a grid uses fewer codes than its type has."""
    reals = call.builder.clip_ends.get(call.node.input[0])
    if reals is None or encoding.axis is not None:
        return encoding
    low, high = (round(real / float(encoding.scale)) + int(encoding.zero_point) for real in reals)
    return replace(encoding, ends=(low, high))


def _with_least(encoding: OnnxEncoding, values: Tensor, call: Call) -> OnnxEncoding:
    """A symmetric grid of a weight that uses the least code too, which targets leave out if they may."""
    shape = tuple(values.shape)
    least = encoding.limits[0] * torch.from_numpy(_spread(encoding.scale, encoding, shape, call).copy())
    if encoding.ends or encoding.zero_point.any() or encoding.dtype.startswith("u") or not (values == least).any():
        return encoding
    return replace(encoding, ends=encoding.limits)


def _on_grid(call: Call, values: Tensor, encoding: OnnxEncoding) -> Tensor:
    """A constant rounded to its grid in the file, for operations whose weights have no quantizer, such as norms."""
    shape = tuple(values.shape)
    scale = torch.from_numpy(_spread(encoding.scale, encoding, shape, call).copy()).to(values.dtype)
    zero = torch.from_numpy(_spread(encoding.zero_point, encoding, shape, call).copy())
    codes = torch.round(values / scale).long() + zero
    return (codes.clamp(*encoding.limits) - zero).to(values.dtype) * scale


def _tensor(call: Call) -> str:
    """The name of what is quantized, which may be on the same grid already, or clipped to its ends before."""
    name: str = call.node.input[0]
    return call.builder.gridded.get(name, call.builder.clipped.get(name, name))


def _lacks_relu(call: Call, encoding: OnnxEncoding) -> bool:
    """Whether a grid without negative numbers does the work of a ReLU: tools leave out the one before it."""
    value = call.value(0)
    if call.builder.keeps_relus or not isinstance(value, fx.Node) or value.op == "placeholder":
        return False
    if encoding.axis is not None:
        return False
    modules = dict(call.builder.root.named_modules())
    return int(encoding.zero_point) == encoding.limits[0] and not _never_negative(value, modules)


def _relu(call: Call, name: str) -> Any:
    """The ReLU that gives the tensor `name`. It is exported too, for targets with another grid."""
    builder = call.builder
    clipped = builder.function(name, F.relu, (call.value(0),), {})
    builder.relus[call.outputs[0]] = name
    builder.tensors[clipped.name] = name
    builder.nodes[clipped.name] = (name,)
    builder.emitted.remove(clipped)
    return clipped


def _never_negative(node: fx.Node, modules: Mapping[str, nn.Module]) -> bool:
    def deciding(one: fx.Node) -> list[fx.Node]:
        kind = kind_of(one, modules)
        return one.all_input_nodes if kind is not None and kind.sign == 0 else []

    for each in reachable([node], deciding):
        kind = kind_of(each, modules)
        if kind is None or kind.sign == -1 or (kind.sign == 0 and not each.all_input_nodes):
            return False
    return True


def _codes(call: Call, encoding: OnnxEncoding | None) -> Any:
    zero = call.inputs[2] if call.has(2) else None
    if isinstance(zero, Constant) and zero.stored is not None:
        call.refuse(f"codes of the type {zero.stored} go somewhere else than to a DequantizeLinear", "remove it")
    given = call.integer("output_dtype")
    dtype = (
        zero.tensor.dtype
        if isinstance(zero, Constant)
        else call.dtype(2)
        if zero is not None
        else TORCH_TYPES.get(given)
    )
    if zero is None and not given:
        dtype = torch.uint8
    name = str(dtype).removeprefix("torch.")
    if name not in _COMPUTED or dtype is None or call.integer("block_size"):
        call.refuse("codes of this type, or in blocks, go somewhere else than to a DequantizeLinear", "remove it")
    axis = encoding.axis if encoding is not None else call.integer("axis")
    return call.op(quantize, call.value(0), call.value(1), call.optional(2), axis=axis, dtype=dtype)


def quantize(x: Tensor, scale: Tensor, zero: Tensor | None, *, axis: int | None, dtype: torch.dtype) -> Tensor:
    """Divide in float32, ties to even, then the zero point, then saturate."""
    info = torch.iinfo(dtype)
    codes = torch.round(x.to(scale.dtype) / _along(scale, x, axis)).double()
    if zero is not None:
        codes = codes + _along(zero, x, axis).double()
    return codes.clamp(info.min, info.max).to(dtype)


def _dequantize(call: Call) -> Any:
    codes, encoding = call.inputs[0], _encoding(call)
    builder = call.builder
    if call.node.input[0] in builder.dissolved:
        builder.gridded[call.outputs[0]] = builder.dissolved[call.node.input[0]]
        return codes
    if isinstance(codes, Constant):
        return _stored_weight(call, codes, encoding)
    if call.integer("block_size") or call.integer("output_dtype"):
        call.refuse("codes that the network computes, in blocks or to another type", "remove it")
    return call.op(dequantize, call.value(0), call.value(1), call.optional(2), axis=call.integer("axis"))


def dequantize(codes: Tensor, scale: Tensor, zero: Tensor | None, *, axis: int) -> Tensor:
    shifted = codes.to(torch.int64)
    if zero is not None:
        shifted = shifted - _along(zero, codes, axis).to(torch.int64)
    return shifted.to(scale.dtype) * _along(scale, codes, axis)


def _stored_weight(call: Call, codes: Constant, encoding: OnnxEncoding | None) -> Any:
    """A weight stored as codes: the float weight, trainable under the name of the node's output."""
    if encoding is None:
        call.refuse("its scale is computed by the network", "store a constant scale")
    name = codes.stored or str(codes.tensor.dtype).removeprefix("torch.")
    if name != encoding.dtype or name not in _CODES:
        call.refuse(f"codes of {name} and a zero point of {encoding.dtype}", "store both in one type")
    if call.integer("output_dtype"):
        call.refuse("it gives another type than its scale", "remove output_dtype")
    shape = tuple(codes.tensor.shape)
    zero = _spread(encoding.zero_point, encoding, shape, call)
    scale = _spread(encoding.scale, encoding, shape, call)
    shifted = (codes.tensor.long() - torch.from_numpy(zero.copy())).to(call.known(1, "scale").dtype)
    result = shifted * torch.from_numpy(scale.copy()).to(shifted.dtype)
    if encoding.block is None or encoding.axis is None or shape[encoding.axis] % encoding.block == 0:
        call.builder.encodings[call.outputs[0]] = _with_least(encoding, result, call)  # no scheme has other blocks
    call.builder.gridded[call.outputs[0]] = call.outputs[0]
    return Constant(result, call.outputs[0])


def _spread(numbers: Any, encoding: OnnxEncoding, shape: tuple[int, ...], call: Call) -> Any:
    """Scale or zero point, so that it broadcasts against the weight."""
    if encoding.axis is None:
        return numbers
    axis = encoding.axis % max(len(shape), 1)
    if encoding.block is not None:
        return np.repeat(numbers, encoding.block, axis=axis)[tuple(slice(0, size) for size in shape)]
    if len(numbers) != shape[axis]:
        call.refuse(f"{len(numbers)} scales for axis {axis} of {list(shape)}", "store one for each channel")
    return numbers.reshape([-1 if at == axis else 1 for at in range(len(shape))])


def _along(numbers: Tensor, x: Tensor, axis: int | None) -> Tensor:
    if numbers.ndim == 0 or numbers.numel() == 1 or axis is None:
        return numbers.reshape(()) if numbers.numel() == 1 else numbers
    return numbers.reshape([-1 if at == axis % x.ndim else 1 for at in range(x.ndim)])


def _encoding(call: Call) -> OnnxEncoding | None:
    """The scale and zero point of a node, if they are constant."""
    return _read(call, call.node, call.inputs[1:3], call.integer("output_dtype"))


def _read(call: Call, node: NodeProto, given: list[Value | None], output_dtype: int) -> OnnxEncoding | None:
    scale, zero = (*given, None, None)[:2]
    if not isinstance(scale, Constant) or isinstance(zero, fx.Node):
        return None
    numbers = scale.tensor.float().numpy()
    if zero is not None:
        dtype = zero.stored or str(zero.tensor.dtype).removeprefix("torch.")
        points = zero.tensor.long().numpy()
    else:
        own = output_dtype if node.op_type == "QuantizeLinear" else 0
        codes = call.inputs[0] if node.op_type == "DequantizeLinear" else None
        dtype = stored_type(own) if own else "uint8"
        if isinstance(codes, Constant):
            dtype = codes.stored or str(codes.tensor.dtype).removeprefix("torch.")
        points = np.zeros(numbers.shape, np.int64)
    if dtype not in _CODES:
        return None
    ends = call.builder.ends.get(node.output[0] if node.op_type == "QuantizeLinear" else node.input[0])
    if ends is not None and not _are_of_bits(*ends):
        call.refuse(f"its codes are clipped to {ends[0]} to {ends[1]}", "use the codes of a whole number of bits")
    attributes = {attribute.name: attribute.i for attribute in node.attribute}
    block = int(attribute_value(node.op_type, attributes, "block_size")) or None
    if block is None and numbers.size == 1:
        return OnnxEncoding(numbers.reshape(()), points.reshape(()), dtype, ends=ends)
    axis, rank = int(attribute_value(node.op_type, attributes, "axis")), call.rank()
    axis = axis + rank if axis < 0 and rank is not None else axis
    if points.shape != numbers.shape or (block is None and numbers.ndim != 1):
        call.refuse(f"a scale of {list(numbers.shape)} and a zero point of {list(points.shape)}", "export it again")
    return OnnxEncoding(numbers, points, dtype, axis, block, ends)


def _are_of_bits(low: int, high: int) -> bool:
    """Whether the codes are those of a number of bits, with or without the least."""
    return high > 0 and (high + 1) & high == 0 and low in (0, -high, -high - 1)


def _matches(call: Call, followed: NodeProto, encoding: OnnxEncoding) -> bool:
    if followed.op_type != "DequantizeLinear":
        return False
    given = [call.builder.values.get(name) if name else None for name in followed.input[1:3]]
    if any(name and value is None for name, value in zip(followed.input[1:3], given, strict=False)):
        return False
    other = _read(call, followed, given, 0)
    if len(followed.input) < 3 and other is not None:
        other = replace(other, dtype=encoding.dtype)
    return other is not None and _same(encoding, other)


def _same(left: OnnxEncoding, right: OnnxEncoding) -> bool:
    kind, other = ((e.dtype, e.axis, e.block, e.ends) for e in (left, right))
    return kind == other and bool(
        np.array_equal(left.scale, right.scale) and np.array_equal(left.zero_point, right.zero_point)
    )


CONVERTERS: dict[str, Converter] = {"QuantizeLinear": _quantize, "DequantizeLinear": _dequantize}

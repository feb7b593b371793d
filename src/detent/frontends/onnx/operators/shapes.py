"""Shapes as tensors, constants and casts."""

from __future__ import annotations

import math
from typing import Any

import torch
from onnx import AttributeProto
from torch import Tensor, nn

from detent.frontends.onnx.builder import Constant
from detent.frontends.onnx.call import Call, Converter
from detent.frontends.onnx.reading.sizes import bounded
from detent.frontends.onnx.reading.tensors import TORCH_TYPES, decode, stored_type, torch_type

__all__ = ["CONVERTERS"]


def _shape(call: Call) -> Any:
    start, end = call.integer("start"), None if call.attribute("end") is None else call.integer("end")
    dims = call.dims(0)
    wanted = dims[start:end] if dims is not None else (None,)
    if None not in wanted and (dims is None or 0 not in dims):
        return Constant(torch.tensor(wanted, dtype=torch.int64))
    return call.op(shape, call.value(0), kind="shape", start=start, end=end)


def shape(x: Tensor, *, start: int, end: int | None) -> Tensor:
    return torch.tensor(x.shape[start:end], dtype=torch.int64, device=x.device)


def _size(call: Call) -> Any:
    return call.op(size, call.value(0), kind="shape")


def size(x: Tensor) -> Tensor:
    return torch.tensor(x.numel(), dtype=torch.int64, device=x.device)


def _constant(call: Call) -> Any:
    if len(call.node.attribute) != 1:
        call.refuse(f"{len(call.node.attribute)} attributes", "a constant has one")
    attribute = call.node.attribute[0]
    if attribute.type == AttributeProto.TENSOR:
        tensor = attribute.t
        stored = None if tensor.data_type in TORCH_TYPES else stored_type(tensor.data_type)
        return Constant(decode(tensor, call.outputs[0]), stored=stored)
    values: dict[int, Any] = {
        AttributeProto.FLOAT: attribute.f,
        AttributeProto.FLOATS: list(attribute.floats),
        AttributeProto.INT: attribute.i,
        AttributeProto.INTS: list(attribute.ints),
    }
    if attribute.type not in values:
        call.refuse("a sparse or text constant", "store it densely")
    real = attribute.type in (AttributeProto.FLOAT, AttributeProto.FLOATS)
    return Constant(torch.tensor(values[attribute.type], dtype=torch.float32 if real else torch.int64))


def _constant_of_shape(call: Call) -> Any:
    attribute = call.attribute("value")
    value = torch.zeros(1) if attribute is None else decode(attribute.t, call.outputs[0])
    if value.numel() != 1:
        call.refuse(f"a value of {value.numel()} elements", "it has one")
    return call.op(filled, call.value(0), kind="constant", value=value.item(), dtype=value.dtype)


def filled(sizes: Tensor, *, value: float, dtype: torch.dtype) -> Tensor:
    return torch.full(bounded(sizes.tolist()), value, dtype=dtype, device=sizes.device)


def _range(call: Call) -> Any:
    return call.op(span, call.value(0), call.value(1), call.value(2), kind="constant")


def span(start: Tensor, limit: Tensor, step: Tensor) -> Tensor:
    """A range with as many steps as ONNX counts: `start + i * step` for each."""
    first, last, by = start.item(), limit.item(), step.item()
    if by == 0 or not all(math.isfinite(number) for number in (first, last, by)):
        raise ValueError(f"no steps of {by} lead from {first} to {last}")
    count = max(math.ceil((last - first) / by), 0)
    bounded([count])
    return (torch.arange(count, device=start.device) * by + first).to(start.dtype)


def _eye_like(call: Call) -> Any:
    dtype = torch_type(call.integer("dtype"), asked="EyeLike") if call.attribute("dtype") is not None else None
    return call.op(eye_like, call.value(0), dtype=dtype, offset=call.integer("k"))


def eye_like(x: Tensor, *, dtype: torch.dtype | None, offset: int) -> Tensor:
    rows = torch.arange(x.shape[0], device=x.device).unsqueeze(1)
    columns = torch.arange(x.shape[1], device=x.device).unsqueeze(0)
    return (columns - rows == offset).to(dtype or x.dtype)


def _one_hot(call: Call) -> Any:
    return call.op(one_hot, call.value(0), call.value(1), call.value(2), axis=call.integer("axis"))


def one_hot(indices: Tensor, depth: Tensor, values: Tensor, *, axis: int) -> Tensor:
    """An index out of range in either direction gives a row of zeros."""
    count = int(depth)
    bounded([count, max(indices.numel(), 1)])
    at = axis % (indices.ndim + 1)
    places = torch.arange(count, device=indices.device).reshape(-1, *[1] * (indices.ndim - at))
    wanted = torch.where(indices < 0, indices + count, indices).unsqueeze(axis)
    return torch.where(wanted == places, values[1], values[0])


def _cast(call: Call) -> Any:
    to = torch_type(call.integer("to"), asked=f"the Cast node {call.names[0]!r}")
    return _cast_to(call, to)


def _cast_like(call: Call) -> Any:
    call.value(1)
    to = call.dtype(1)
    if to is None:
        call.refuse("the type it casts to is not known", "use Cast")
    return _cast_to(call, to)


def _cast_to(call: Call, to: torch.dtype) -> Any:
    x = call.value(0)
    if isinstance(x, Constant) and x.tensor.dtype == to:
        return x
    return call.op(cast, x, kind="cast", to=to)


def cast(x: Tensor, *, to: torch.dtype) -> Tensor:
    return x.to(to)


def _non_zero(call: Call) -> Any:
    return call.op(non_zero, call.value(0))


def non_zero(x: Tensor) -> Tensor:
    return x.nonzero().t()


def _dropout(call: Call) -> Any:
    """In eval mode, which is what a file has; the module drops again when the graph is trained."""
    training = call.constant(2)
    if call.has(2) and (training is None or bool(training)):
        call.refuse("it is in training mode", "export the model in eval mode")
    if call.used(1) and call.opset < 12:
        call.refuse("its mask, which in eval mode the specification does not define", "convert it to opset 12 or later")
    if call.used(1):
        return call.parts(dropout_mask, call.value(0), kind="dropout")
    ratio = call.constant(1) if call.opset >= 12 else None
    probability = call.real("ratio") if call.opset < 12 else 0.5 if ratio is None else float(ratio)
    if isinstance(call.value(0), Constant) or not 0 <= probability < 1:
        return call.value(0)
    return call.module(nn.Dropout(probability), call.value(0))


def dropout_mask(x: Tensor) -> tuple[Tensor, Tensor]:
    return x, torch.ones_like(x, dtype=torch.bool)


CONVERTERS: dict[str, Converter] = {
    "Shape": _shape,
    "Size": _size,
    "Constant": _constant,
    "ConstantOfShape": _constant_of_shape,
    "Range": _range,
    "EyeLike": _eye_like,
    "OneHot": _one_hot,
    "Cast": _cast,
    "CastLike": _cast_like,
    "NonZero": _non_zero,
    "Dropout": _dropout,
}

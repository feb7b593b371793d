"""TensorProto -> torch, after checking its size against its declared shape."""

from __future__ import annotations

import math

import numpy as np
import onnx
import torch
from onnx import TensorProto
from torch import Tensor

from detent.errors import OnnxError

__all__ = ["TORCH_TYPES", "byte_size", "check_size", "decode", "stored_type", "torch_type", "type_name"]

TORCH_TYPES: dict[int, torch.dtype] = {
    TensorProto.FLOAT: torch.float32,
    TensorProto.DOUBLE: torch.float64,
    TensorProto.FLOAT16: torch.float16,
    TensorProto.BFLOAT16: torch.bfloat16,
    TensorProto.INT8: torch.int8,
    TensorProto.INT16: torch.int16,
    TensorProto.INT32: torch.int32,
    TensorProto.INT64: torch.int64,
    TensorProto.UINT8: torch.uint8,
    TensorProto.BOOL: torch.bool,
}
"""The types a graph computes in. Others stand in the codes of quantized tensors only."""

_WIDER: dict[str, torch.dtype] = {
    "UINT16": torch.int32,
    "UINT32": torch.int64,
    "INT4": torch.int8,
    "UINT4": torch.uint8,
    "INT2": torch.int8,
    "UINT2": torch.uint8,
}
_BITS = {"INT4": 4, "UINT4": 4, "INT2": 2, "UINT2": 2}
_LIMIT = 2**40  # elements; more than any file holds, so that the product of absurd dims is not even computed further


def type_name(data_type: int) -> str:
    """`FLOAT` for 1; the number itself where ONNX has no such type."""
    names = dict(zip(TensorProto.DataType.values(), TensorProto.DataType.keys(), strict=True))
    return str(names.get(data_type, data_type))


def stored_type(data_type: int) -> str:
    """The type as numpy would call it, `uint8` for 2."""
    return {"FLOAT": "float32", "DOUBLE": "float64"}.get(type_name(data_type), type_name(data_type).lower())


def torch_type(data_type: int, *, asked: str) -> torch.dtype:
    if data_type not in TORCH_TYPES:
        raise OnnxError(
            asked,
            f"the type {type_name(data_type)}, which the import does not compute in",
            f"convert the model to one of {', '.join(sorted(type_name(known) for known in TORCH_TYPES))}",
        )
    return TORCH_TYPES[data_type]


def decode(tensor: TensorProto, name: str) -> Tensor:
    """The values; codes of a type that torch does not have come in the next wider one it has."""
    count = _count(tensor, name)
    # Asked for once: each time the bytes are copied.
    raw = tensor.raw_data if tensor.HasField("raw_data") else None
    _check_length(tensor, name, count, raw)
    try:
        if tensor.data_type == TensorProto.BFLOAT16:
            return _bfloat16(tensor, count, raw)
        if raw is not None and tensor.data_type in TORCH_TYPES:
            stored = onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type).newbyteorder("<")
            array = np.frombuffer(raw, stored).reshape(tuple(tensor.dims))
            return torch.from_numpy(array.astype(stored.newbyteorder("="), copy=True))
        array = onnx.numpy_helper.to_array(tensor)
        wider = _WIDER.get(type_name(tensor.data_type))
        if wider is not None:
            return torch.from_numpy(array.astype(np.int64).astype(str(wider).removeprefix("torch.")))
        torch_type(tensor.data_type, asked=f"read the tensor {name!r}")
        return torch.from_numpy(np.array(array))  # a copy: what protobuf holds is not ours to train
    except OnnxError:
        raise
    except Exception as error:  # whatever decoding did with bytes that do not fit
        raise _broken(name, f"{type(error).__name__}: {error}") from error


def byte_size(tensor: TensorProto) -> int:
    """How many bytes its values take, as its type and shape say."""
    count, kind = _count(tensor, tensor.name), _readable(tensor, tensor.name)
    return math.ceil(count * _bits(tensor.data_type, kind) / 8)


def check_size(tensor: TensorProto, found: int) -> None:
    """Refuses a tensor of another size than `found` bytes."""
    if found != byte_size(tensor):
        raise _broken(tensor.name, f"{found} bytes where its shape wants {byte_size(tensor)}")


def _count(tensor: TensorProto, name: str) -> int:
    count = 1
    for size in tensor.dims:
        count *= size
        if size < 0 or count > _LIMIT:
            raise _broken(name, f"the shape {list(tensor.dims)[:8]}")
    return count


def _check_length(tensor: TensorProto, name: str, count: int, raw: bytes | None) -> None:
    kind = _readable(tensor, name)
    if tensor.data_location == TensorProto.EXTERNAL:
        raise _broken(name, "its data is external and was not read")
    bits = _bits(tensor.data_type, kind)
    if raw is not None:
        check_size(tensor, len(raw))
        return
    field = onnx.helper.tensor_dtype_to_field(tensor.data_type)
    wanted = math.ceil(count * bits / 8) if kind in _BITS else count
    if len(getattr(tensor, field)) != wanted:
        raise _broken(name, f"{len(getattr(tensor, field))} values where its shape wants {wanted}")


def _readable(tensor: TensorProto, name: str) -> str:
    """The name of its type, if it is one that is read."""
    kind = type_name(tensor.data_type)
    if kind in ("STRING", "UNDEFINED") or tensor.HasField("segment"):
        raise OnnxError(f"read the tensor {name!r}", f"it holds {kind.lower()} data", "import a model without such")
    if tensor.data_type not in TORCH_TYPES and kind not in _WIDER:
        torch_type(tensor.data_type, asked=f"read the tensor {name!r}")
    return kind


def _bits(data_type: int, kind: str) -> int:
    return _BITS.get(kind) or 8 * onnx.helper.tensor_dtype_to_np_dtype(data_type).itemsize


def _bfloat16(tensor: TensorProto, count: int, raw: bytes | None) -> Tensor:
    if raw is not None:
        bits = np.frombuffer(raw, dtype="<u2").astype(np.int16)
    else:
        bits = np.fromiter(tensor.int32_data, dtype=np.int32, count=count).astype(np.uint16).astype(np.int16)
    return torch.from_numpy(bits.copy()).view(torch.bfloat16).reshape(tuple(tensor.dims))


def _broken(name: str, found: str) -> OnnxError:
    return OnnxError(f"read the tensor {name!r}", found, "the file is damaged: get it again, or export it again")

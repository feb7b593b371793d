"""A .tflite file as plain values: tensors, operators, and the two ends; to bytes and back.

The numbers of tensors are positions in `TfliteModel.tensors`, as in the file. Only the first subgraph is read, and
only builtin operators: that is what an inference network consists of.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from detent.errors import DeployError
from detent.ir import Encoding
from detent.targets.litert.file.schema import DTYPES, OPTIONS, code_of, name_of, schema

__all__ = ["Operator", "TfliteModel", "TfliteTensor", "read_tflite", "to_bytes"]

Array = npt.NDArray[Any]

_IDENTIFIER = b"TFL3"
_SCHEMA_VERSION = 3
_ALIGNMENT = 16


@dataclass(frozen=True, eq=False)
class TfliteTensor:
    """`shape` is that of a batch of one; `signature` is the same with -1 for sizes that are free.

    `encoding` is set for integers that stand for real numbers, `data` for constants. Those of int4 are held as int8
    here, and two in a byte in the file.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    signature: tuple[int, ...]
    encoding: Encoding | None = None
    data: Array | None = None


@dataclass(frozen=True)
class Operator:
    """A builtin operator by its name in the schema, as are its options; an absent optional input is -1."""

    kind: str
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    options: Mapping[str, Any] = field(default_factory=dict, hash=False)
    version: int = 1


@dataclass(frozen=True, eq=False)
class TfliteModel:
    """A network; `metadata` are named buffers beside it."""

    tensors: tuple[TfliteTensor, ...]
    operators: tuple[Operator, ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    metadata: Mapping[str, bytes] = field(default_factory=dict)


def to_bytes(model: TfliteModel) -> bytes:
    """The flatbuffer. The same model gives the same bytes."""
    import flatbuffers  # type: ignore[import-untyped, unused-ignore]

    class Aligned(flatbuffers.Builder):  # type: ignore[misc, unused-ignore]
        def StartVector(self, size: int, count: int, alignment: int) -> Any:  # noqa: N802 - the library's name
            # Constant data is mapped as it is; the generated code says 1 where the schema says 16.
            return super().StartVector(size, count, _ALIGNMENT if size == 1 else alignment)

    made = _Packer(model).packed()
    builder = Aligned(1 << 16)
    builder.Finish(made.Pack(builder), _IDENTIFIER)
    return bytes(builder.Output())


class _Packer:
    def __init__(self, model: TfliteModel):
        self._schema = schema()
        self._model = model
        self._buffers = [self._schema.BufferT()]  # the first is the empty one that tensors without data refer to
        self._codes: dict[tuple[str, int], int] = {}

    def packed(self) -> Any:
        made, graph = self._schema.ModelT(), self._schema.SubGraphT()
        graph.name = "main"
        graph.tensors = [self._tensor(tensor) for tensor in self._model.tensors]
        graph.operators = [self._operator(operator) for operator in self._model.operators]
        graph.inputs, graph.outputs = list(self._model.inputs), list(self._model.outputs)
        made.version, made.description = _SCHEMA_VERSION, "Detent"
        made.subgraphs = [graph]
        made.operatorCodes = [self._operator_code(kind, version) for kind, version in self._codes]
        made.metadata = [self._metadata(name, content) for name, content in self._model.metadata.items()]
        made.buffers = self._buffers
        return made

    def _buffer(self, content: bytes) -> int:
        buffer = self._schema.BufferT()
        buffer.data = np.frombuffer(content, np.uint8)
        self._buffers.append(buffer)
        return len(self._buffers) - 1

    def _tensor(self, tensor: TfliteTensor) -> Any:
        if tensor.dtype not in DTYPES:
            raise DeployError(
                f"write the tensor {tensor.name!r} as .tflite", f"it is {tensor.dtype}", f"use {', '.join(DTYPES)}"
            )
        made = self._schema.TensorT()
        made.name, made.shape = tensor.name, list(tensor.shape)
        if tensor.signature != tensor.shape:
            made.shapeSignature = list(tensor.signature)
        made.type = code_of(self._schema.TensorType, DTYPES[tensor.dtype])
        made.buffer = 0 if tensor.data is None else self._buffer(_stored(tensor.data, tensor.dtype))
        if tensor.encoding is not None:
            made.quantization = self._schema.QuantizationParametersT()
            made.quantization.scale = np.atleast_1d(tensor.encoding.scale)
            made.quantization.zeroPoint = np.atleast_1d(tensor.encoding.zero_point)
            made.quantization.quantizedDimension = tensor.encoding.axis or 0
        return made

    def _operator(self, operator: Operator) -> Any:
        made = self._schema.OperatorT()
        key = (operator.kind, operator.version)
        made.opcodeIndex = self._codes.setdefault(key, len(self._codes))
        made.inputs, made.outputs = list(operator.inputs), list(operator.outputs)
        name = OPTIONS.get(operator.kind)
        if name is not None:
            options = getattr(self._schema, f"{name}T")()
            for key_, value in operator.options.items():
                assert hasattr(options, key_), (operator.kind, key_)
                setattr(options, key_, value)
            made.builtinOptionsType = code_of(self._schema.BuiltinOptions, name)
            made.builtinOptions = options
        return made

    def _operator_code(self, kind: str, version: int) -> Any:
        made = self._schema.OperatorCodeT()
        made.builtinCode = code_of(self._schema.BuiltinOperator, kind)
        # Old readers look here, where there is room for 127 codes.
        made.deprecatedBuiltinCode = min(made.builtinCode, 127)
        made.version = version
        return made

    def _metadata(self, name: str, content: bytes) -> Any:
        made = self._schema.MetadataT()
        made.name, made.buffer = name, self._buffer(content)
        return made


def read_tflite(content: bytes) -> TfliteModel:
    """The network of a .tflite file."""
    s = schema()
    if content[4:8] != _IDENTIFIER:
        raise DeployError("read a .tflite file", f"it begins with {content[:8]!r}", "give a file that ends in .tflite")
    model = s.ModelT.InitFromObj(s.Model.GetRootAsModel(content, 0))
    if len(model.subgraphs) != 1:
        raise DeployError(
            "read a .tflite file", f"it has {len(model.subgraphs)} subgraphs", "give a network without control flow"
        )
    graph = model.subgraphs[0]
    metadata = {_text(m.name): bytes(model.buffers[m.buffer].data) for m in model.metadata or []}
    return TfliteModel(
        tuple(_tensor(s, tensor, model.buffers) for tensor in graph.tensors),
        tuple(_operator(s, operator, model.operatorCodes) for operator in graph.operators),
        tuple(int(index) for index in graph.inputs),
        tuple(int(index) for index in graph.outputs),
        metadata,
    )


def _tensor(s: Any, tensor: Any, buffers: list[Any]) -> TfliteTensor:
    name, kind = _text(tensor.name), name_of(s.TensorType, tensor.type)
    dtype = next((dtype for dtype, known in DTYPES.items() if known == kind), None)
    if dtype is None:
        raise DeployError(
            f"read the tensor {name!r}", f"it is of type {kind}", f"types that are read: {', '.join(DTYPES)}"
        )
    shape = tuple(int(size) for size in tensor.shape) if tensor.shape is not None else ()
    signature = tuple(int(size) for size in tensor.shapeSignature) if tensor.shapeSignature is not None else shape
    held = buffers[tensor.buffer].data
    data = None
    if held is not None and len(held):
        data = _held(bytes(held), dtype, shape)
    return TfliteTensor(name, dtype, shape, signature, _encoding(tensor.quantization, dtype), data)


def _stored(data: Array, dtype: str) -> bytes:
    """The bytes of a constant."""
    if dtype != "int4":
        return np.ascontiguousarray(data).tobytes()
    halves = np.append(data.reshape(-1), [0] * (data.size % 2)).astype(np.int8).view(np.uint8) & 15
    return (halves[::2] | halves[1::2] << 4).tobytes()


def _held(content: bytes, dtype: str, shape: tuple[int, ...]) -> Array:
    """The constant with these bytes; of two numbers in a byte, the first is in the lower four bits.

    >>> _held(_stored(np.array([[-7, 3, 5]]), "int4"), "int4", (1, 3)).tolist()
    [[-7, 3, 5]]
    """
    if dtype != "int4":
        return np.frombuffer(content, np.dtype(dtype)).reshape(shape)
    pairs = np.frombuffer(content, np.int8)
    # Shifting to the left first repeats the sign.
    halves = np.stack([np.left_shift(pairs, 4) >> 4, pairs >> 4], axis=-1).reshape(-1)
    return halves[: int(np.prod(shape))].reshape(shape)


def _encoding(quantization: Any, dtype: str) -> Encoding | None:
    if quantization is None or quantization.scale is None or not len(quantization.scale) or dtype.startswith("float"):
        return None
    scale = np.asarray(quantization.scale, np.float32)
    zero_point = np.asarray(quantization.zeroPoint, np.int64)
    # Biases of 16-bit layers: encodings end at 32 bits, and only scale and zero point of them are asked for.
    dtype = "int32" if dtype == "int64" else dtype
    if scale.size == 1:
        return Encoding(scale.reshape(()), zero_point.reshape(()), dtype)
    return Encoding(scale, np.broadcast_to(zero_point, scale.shape), dtype, int(quantization.quantizedDimension))


def _operator(s: Any, operator: Any, codes: list[Any]) -> Operator:
    code = codes[operator.opcodeIndex]
    kind = name_of(s.BuiltinOperator, max(code.builtinCode, code.deprecatedBuiltinCode))
    options = {} if operator.builtinOptions is None else dict(vars(operator.builtinOptions))
    return Operator(
        kind,
        tuple(int(index) for index in operator.inputs),
        tuple(int(index) for index in operator.outputs),
        options,
        int(code.version),
    )


def _text(name: str | bytes) -> str:
    return name.decode() if isinstance(name, bytes) else name

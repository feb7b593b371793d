"""ncnn's two files: `.param`, the layers as text, and `.bin`, their numbers one after the other.

    7767517                                  the magic number
    3 3                                      layers, blobs
    Input x 0 1 x                            type, name, how many blobs in and out, their names, then id=value
    Convolution conv 1 1 x y 0=8 1=3 8=2     an id below -23300 holds an array: -23310=2,0.0,6.0

The `.bin` has no names and no sizes: what a layer holds follows from its type and parameters.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from detent.errors import DeployError

__all__ = ["NcnnLayer", "NcnnModel", "Value"]

Array = npt.NDArray[Any]
Value = int | float | tuple[int, ...] | tuple[float, ...]

_MAGIC = "7767517"
_ARRAY = -23300
_INT8 = 0x000D4B38
_FLOAT32 = 0
_LONGEST_NAME = 255  # what ncnn reads of a word


@dataclass(frozen=True, eq=False)
class NcnnLayer:
    """One layer: `params` by id, `weights` flat and in the order of the `.bin`, int8 or float32."""

    type: str
    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    params: Mapping[int, Value] = field(default_factory=dict)
    weights: tuple[Array, ...] = ()

    @property
    def int8(self) -> bool:
        """Whether it runs on integers."""
        return self.type in _WEIGHTED and bool(self.params.get(8, 0))

    @property
    def gives_codes(self) -> bool:
        """Whether its output is int8 for the next integer layer."""
        return self.int8 and self.number(8) > 100

    def number(self, key: int, default: int = 0) -> int:
        """A parameter that is an integer."""
        value = self.params.get(key, default)
        assert isinstance(value, int), (self.type, self.name, key, value)
        return value


@dataclass(frozen=True, eq=False)
class NcnnModel:
    """Layers in an order they can run in. Every blob has one producer and at most one consumer."""

    layers: tuple[NcnnLayer, ...]

    def layer(self, name: str) -> NcnnLayer:
        return next(layer for layer in self.layers if layer.name == name)

    @property
    def named_rows(self) -> frozenset[str]:
        """The inputs that are int32: they name rows of tables. All others are float32."""
        found: set[str] = set()
        for layer in reversed(self.layers):
            if layer.type == "Embed" or (layer.type in ("Reshape", "Split") and found.intersection(layer.outputs)):
                found.update(layer.inputs)
        return frozenset(
            blob for layer in self.layers if layer.type == "Input" for blob in layer.outputs if blob in found
        )

    @property
    def blobs(self) -> tuple[str, ...]:
        return tuple(blob for layer in self.layers for blob in layer.outputs)

    def param(self) -> bytes:
        """The `.param` file."""
        lines = [_MAGIC, f"{len(self.layers)} {len(self.blobs)}", *(_line(layer) for layer in self.layers)]
        return ("\n".join(lines) + "\n").encode()

    def bin(self) -> bytes:
        """The `.bin` file."""
        return b"".join(
            _stored(array, tagged)
            for layer in self.layers
            for array, (_, tagged) in zip(layer.weights, _held(layer), strict=True)
        )

    @classmethod
    def read(cls, param: bytes, content: bytes) -> NcnnModel:
        """The model of two files; what `param` and `bin` wrote comes back as it was."""
        lines = param.decode().split("\n")
        if lines[0].strip() != _MAGIC:
            raise DeployError(
                "read an ncnn .param", f"it begins with {lines[0]!r}", f"give a file with {_MAGIC} on top"
            )
        numbers = _Numbers(content)
        layers = [_parsed(line) for line in lines[2:] if line.strip()]
        read = [
            NcnnLayer(
                layer.type,
                layer.name,
                layer.inputs,
                layer.outputs,
                layer.params,
                tuple(numbers.take(size, tagged) for size, tagged in _held(layer)),
            )
            for layer in layers
        ]
        numbers.end()
        return cls(tuple(read))


# --- text -----------------------------------------------------------------------------------------------------


def _line(layer: NcnnLayer) -> str:
    for word in (layer.name, *layer.inputs, *layer.outputs):
        if not word or len(word) > _LONGEST_NAME or any(character.isspace() for character in word):
            raise DeployError(
                f"write {layer.type} {layer.name!r} for ncnn",
                f"{word!r} is empty, has spaces or is longer than {_LONGEST_NAME} characters",
                "rename it in the network",
            )
    words = [layer.type, layer.name, str(len(layer.inputs)), str(len(layer.outputs)), *layer.inputs, *layer.outputs]
    return " ".join([*words, *(_parameter(key, value) for key, value in sorted(layer.params.items()))])


def _parameter(key: int, value: Value) -> str:
    if isinstance(value, tuple):
        return f"{_ARRAY - key}={','.join([str(len(value)), *(_number(item) for item in value)])}"
    return f"{key}={_number(value)}"


def _number(value: float) -> str:
    """ncnn reads 15 characters and takes what has a point or an exponent for a float: `%.8e` fits, and gives every
    float32 back."""
    return str(value) if isinstance(value, int) else f"{np.float32(value):.8e}"


def _parsed(line: str) -> NcnnLayer:
    words = line.split()
    taken, given = int(words[2]), int(words[3])
    blobs, rest = words[4 : 4 + taken + given], words[4 + taken + given :]
    params: dict[int, Value] = {}
    for word in rest:
        key, value = word.split("=")
        if int(key) <= _ARRAY:
            params[_ARRAY - int(key)] = tuple(_value(item) for item in value.split(",")[1:])
        else:
            params[int(key)] = _value(value)
    return NcnnLayer(words[0], words[1], tuple(blobs[:taken]), tuple(blobs[taken:]), params)


def _value(text: str) -> int | float:
    return float(np.float32(text)) if any(mark in text.lower() for mark in ".e") else int(text)


# --- numbers --------------------------------------------------------------------------------------------------

_CONVOLUTIONS = ("Convolution", "ConvolutionDepthWise", "Convolution3D", "ConvolutionDepthWise3D")
_DECONVOLUTIONS = ("Deconvolution", "DeconvolutionDepthWise")
_WEIGHTED = (*_CONVOLUTIONS, *_DECONVOLUTIONS, "InnerProduct")


def _held(layer: NcnnLayer) -> list[tuple[int, bool]]:
    """The number of elements of each array of a layer, and whether it is preceded by a tag with its type."""
    number = layer.number
    if layer.type in _WEIGHTED:
        fully_connected = layer.type == "InnerProduct"
        bias, size = (1, 2) if fully_connected else (5, 6)
        held = [(number(size), True)]
        if number(bias):
            held.append((number(0), False))
        if number(8):
            grouped = layer.type == "ConvolutionDepthWise"
            held += [((number(7) if number(8) % 100 == 1 else 1) if grouped else number(0), False), (1, False)]
        if number(8) > 100:
            held.append((1, False))
        return held
    if layer.type == "MemoryData":
        return [(math.prod(number(key) or 1 for key in (0, 1, 11, 2)), False)]
    if layer.type in ("PReLU", "RMSNorm"):
        return [(number(0), False)]
    if layer.type == "LayerNorm":
        return [(number(0), False)] * 2 if number(2, 1) else []
    if layer.type in ("BatchNorm", "InstanceNorm"):
        return [(number(0), False)] * (4 if layer.type == "BatchNorm" else 2)
    if layer.type in ("LSTM", "GRU"):
        ways = 2 if number(2) == 2 else 1
        gates = 4 if layer.type == "LSTM" else 3
        return [(number(1), True), (ways * 4 * number(0), True), (ways * gates * number(0) ** 2, True)]
    if layer.type == "Embed":
        return [(number(3), True)]
    return []


def _stored(array: Array, tagged: bool) -> bytes:
    if not tagged:
        return array.astype("<f4").tobytes()
    if array.dtype == np.int8:
        content = array.tobytes()
        return struct.pack("<I", _INT8) + content + b"\0" * (-len(content) % 4)
    return struct.pack("<I", _FLOAT32) + array.astype("<f4").tobytes()


class _Numbers:
    """Reads a `.bin` from its beginning."""

    def __init__(self, content: bytes):
        self._content = content
        self._at = 0

    def take(self, size: int, tagged: bool) -> Array:
        tag = struct.unpack("<I", self._bytes(4))[0] if tagged else _FLOAT32
        if tag == _INT8:
            codes = np.frombuffer(self._bytes(size), np.int8)
            self._bytes(-size % 4)
            return codes
        if tag != _FLOAT32:
            raise DeployError(
                "read an ncnn .bin", f"numbers of a type with tag {tag:#x}", "give float32 or int8 weights"
            )
        return np.frombuffer(self._bytes(4 * size), "<f4")

    def end(self) -> None:
        left = len(self._content) - self._at
        if left:
            raise DeployError("read an ncnn .bin", f"{left} bytes too many", "give the two files of one model")

    def _bytes(self, count: int) -> bytes:
        found = self._content[self._at : self._at + count]
        if len(found) != count:
            raise DeployError("read an ncnn .bin", "it ends too early", "give the two files of one model")
        self._at += count
        return found

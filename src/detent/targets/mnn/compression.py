"""MNN's compression parameters: the grid of what each layer reads, holds and gives, next to a float model.

`mnnconvert --compressionParamsFile` takes them as a protobuf message (`MNN_compression.proto`); the same fields as JSON
are there for people. One algorithm is written, QUANTIZE, with one entry for each layer.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from detent.errors import DeployError

__all__ = ["PART", "ActivationGrid", "Compression", "CompressionLayer", "WeightGrid"]

PART = "___output___"
"""Before the number of a group, in the name of what MNN's convolution for it gives."""
_VERSION = "0.0.0"
_ROUND_AWAY_FROM_ZERO = 1


@dataclass(frozen=True)
class ActivationGrid:
    """A tensor of the MNN model and its scale."""

    name: str
    scale: float
    zero_point: int = 0
    clamp_min: int = -127
    clamp_max: int = 127
    bits: int = 8


@dataclass(frozen=True)
class WeightGrid:
    """The scales of a weight, one for each output channel; there is no zero point."""

    name: str
    scales: tuple[float, ...]
    clamp_min: int = -127
    clamp_max: int = 127
    bits: int = 8


@dataclass(frozen=True)
class CompressionLayer:
    """A layer, which MNN finds by the name of its output."""

    input: ActivationGrid
    weight: WeightGrid
    output: ActivationGrid


@dataclass(frozen=True)
class Compression:
    """All layers that run on integers."""

    layers: tuple[CompressionLayer, ...]

    def weights(self) -> list[WeightGrid]:
        """The weights of each layer, with all scales of one that MNN splits."""
        found: dict[tuple[str, str], WeightGrid] = {}
        for layer in self.layers:
            key = layer.weight.name, layer.output.name.partition(PART)[0]
            before = found[key].scales if key in found else ()
            found[key] = replace(layer.weight, scales=(*before, *layer.weight.scales))
        return list(found.values())

    def message(self) -> bytes:
        """The protobuf message."""
        quantize = _number(1, _ROUND_AWAY_FROM_ZERO) + b"".join(_bytes(4, _layer(layer)) for layer in self.layers)
        return _bytes(1, _VERSION.encode()) + _bytes(2, _number(1, 0) + _bytes(2, quantize))

    def text(self) -> bytes:
        """The message as JSON."""
        layers = [
            {
                "input": [_activation_fields(layer.input)],
                "weight": [
                    {
                        "name": layer.weight.name,
                        "bits": layer.weight.bits,
                        "scales": list(layer.weight.scales),
                        "clamp_min": layer.weight.clamp_min,
                        "clamp_max": layer.weight.clamp_max,
                    }
                ],
                "output": [_activation_fields(layer.output)],
                "method": "QAT",
            }
            for layer in self.layers
        ]
        quantize = {"round_mode": "ROUND_AWAY_FROM_ZERO", "layer": layers}
        whole = {"version": _VERSION, "algo": [{"type": "QUANTIZE", "quant_params": quantize}]}
        return json.dumps(whole, indent=1).encode()

    @classmethod
    def from_message(cls, content: bytes) -> Compression:
        """Reads what `message` or another program wrote."""
        layers = [
            _read_layer(layer)
            for algorithm in _all(content, 2)
            for quantize in _all(algorithm, 2)
            for layer in _all(quantize, 4)
        ]
        return cls(tuple(layers))

    @classmethod
    def from_text(cls, content: bytes) -> Compression:
        """Reads what `text` wrote."""
        layers = [
            CompressionLayer(
                _activation_of(layer["input"][0]),
                WeightGrid(
                    layer["weight"][0]["name"],
                    tuple(layer["weight"][0]["scales"]),
                    layer["weight"][0]["clamp_min"],
                    layer["weight"][0]["clamp_max"],
                    layer["weight"][0]["bits"],
                ),
                _activation_of(layer["output"][0]),
            )
            for algorithm in json.loads(content)["algo"]
            for layer in algorithm["quant_params"]["layer"]
        ]
        return cls(tuple(layers))


def _activation_fields(grid: ActivationGrid) -> dict[str, Any]:
    return {
        "name": grid.name,
        "bits": grid.bits,
        "scales": [grid.scale],
        "zero_point": grid.zero_point,
        "clamp_min": grid.clamp_min,
        "clamp_max": grid.clamp_max,
    }


def _activation_of(fields: dict[str, Any]) -> ActivationGrid:
    bounds = fields["clamp_min"], fields["clamp_max"]
    return ActivationGrid(fields["name"], fields["scales"][0], fields["zero_point"], *bounds, fields["bits"])


# --- protobuf -------------------------------------------------------------------------------------------------

_VARINT, _LENGTH, _FIXED32 = 0, 2, 5


def _layer(layer: CompressionLayer) -> bytes:
    weight = layer.weight
    held = _bytes(1, weight.name.encode()) + _number(2, weight.bits)
    held += b"".join(_float(3, scale) for scale in weight.scales)
    held += _number(4, weight.clamp_min) + _number(5, weight.clamp_max)
    return _bytes(1, _activation(layer.input)) + _bytes(2, held) + _bytes(3, _activation(layer.output)) + _number(4, 0)


def _activation(grid: ActivationGrid) -> bytes:
    named = _bytes(1, grid.name.encode()) + _number(2, grid.bits) + _float(3, grid.scale)
    return named + _number(4, grid.zero_point) + _number(5, grid.clamp_min) + _number(6, grid.clamp_max)


def _varint(value: int) -> bytes:
    """Seven bits a byte, least first; a negative number is its two's complement in 64 bits."""
    value &= 2**64 - 1
    found = bytearray()
    while value > 127:
        found.append(value & 127 | 128)
        value >>= 7
    return bytes([*found, value])


def _number(field: int, value: int) -> bytes:
    return _varint(field << 3 | _VARINT) + _varint(value)


def _float(field: int, value: float) -> bytes:
    return _varint(field << 3 | _FIXED32) + struct.pack("<f", value)


def _bytes(field: int, content: bytes) -> bytes:
    return _varint(field << 3 | _LENGTH) + _varint(len(content)) + content


def _fields(content: bytes) -> Iterator[tuple[int, int, Any]]:
    """(field, wire type, value) of a message, in its order."""
    at = 0
    while at < len(content):
        key, at = _read_varint(content, at)
        field, kind = key >> 3, key & 7
        if kind == _VARINT:
            value, at = _read_varint(content, at)
            yield field, kind, value - 2**64 if value >= 2**63 else value
        elif kind == _FIXED32:
            yield field, kind, content[at : at + 4]
            at += 4
        elif kind == _LENGTH:
            size, at = _read_varint(content, at)
            yield field, kind, content[at : at + size]
            at += size
        else:
            raise DeployError("read MNN compression parameters", f"wire type {kind}", "give a Pipeline message")
        if at > len(content):
            raise DeployError("read MNN compression parameters", "the message ends too early", "give the whole file")


def _read_varint(content: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        if at >= len(content):
            raise DeployError("read MNN compression parameters", "the message ends too early", "give the whole file")
        byte, at = content[at], at + 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, at
        shift += 7


def _all(content: bytes, field: int) -> list[bytes]:
    return [value for number, kind, value in _fields(content) if number == field and kind == _LENGTH]


def _integer(content: bytes, field: int, default: int) -> int:
    return next((int(value) for number, _, value in _fields(content) if number == field), default)


def _floats(content: bytes, field: int) -> tuple[float, ...]:
    """One value in each field, or all in one."""
    held = b"".join(value for number, _, value in _fields(content) if number == field)
    return tuple(struct.unpack(f"<{len(held) // 4}f", held))


def _read_layer(content: bytes) -> CompressionLayer:
    inputs, weights, outputs = (_all(content, field) for field in (1, 2, 3))
    if not (len(inputs) == len(weights) == len(outputs) == 1):
        raise DeployError(
            "read MNN compression parameters", "a layer with several inputs or outputs", "give one of each"
        )
    weight = weights[0]
    grid = WeightGrid(
        _all(weight, 1)[0].decode(),
        _floats(weight, 3),
        _integer(weight, 4, -128),
        _integer(weight, 5, 127),
        _integer(weight, 2, 8),
    )
    return CompressionLayer(_read_activation(inputs[0]), grid, _read_activation(outputs[0]))


def _read_activation(content: bytes) -> ActivationGrid:
    return ActivationGrid(
        _all(content, 1)[0].decode(),
        _floats(content, 3)[0],
        _integer(content, 4, 0),
        _integer(content, 5, -128),
        _integer(content, 6, 127),
        _integer(content, 2, 8),
    )

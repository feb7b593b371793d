"""Qualcomm's quantization overrides: what `qairt-converter`, `qnn-onnx-converter` and `snpe-onnx-to-dlc` take with
`--quantization_overrides`, beside `float.onnx`.

Codes are counted from 0 in all of them, so that `real = scale * (code + offset)` with codes 0 to 2^bits - 1, and an
offset is the least code of the type minus the zero point: -zero_point for uint8, -128 for symmetric int8. PPQ writes
the zero point with the wrong sign, and MQBench no parameters, so that SNPE finds their ranges anew.

    quantization_overrides_1.0.0.json   lists, an entry for a tensor      (tools of today)
    quantization_overrides_0.6.1.json   by name, an entry for a channel   (older ones)
    snpe_encodings.json                 by name, range and width only     (the form of MQBench)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from detent.ir import DeployedTensor
from detent.numerics import PerTensor
from detent.targets.base import TensorFacts, Written
from detent.targets.base.content import as_json, parse_json, unreadable
from detent.targets.base.float_network import FLOAT_MODEL, FloatNetwork, ParameterFormat
from detent.targets.base.format import Roles
from detent.targets.base.limits import integers, no_groups

__all__ = [
    "FORMAT",
    "Overrides",
    "QualcommEncoding",
    "QualcommEncodingsFormat",
    "QualcommRange",
    "TensorRanges",
    "range_facts",
    "ranges",
    "read_overrides",
    "read_ranges",
]

_NAME = "qualcomm_encodings"
_NEW, _OLD = "quantization_overrides_1.0.0.json", "quantization_overrides_0.6.1.json"
_RANGES = "snpe_encodings.json"
_ROLES: Roles = ("activation", "weight")


@dataclass(frozen=True)
class QualcommEncoding:
    """`real = scale * (code + offset)`; one scale and offset, or one for each channel. Symmetric codes are signed."""

    bits: int
    symmetric: bool
    scale: tuple[float, ...]
    offset: tuple[int, ...]
    per_channel: bool

    @property
    def minimum(self) -> tuple[float, ...]:
        return tuple(scale * offset for scale, offset in zip(self.scale, self.offset, strict=True))

    @property
    def maximum(self) -> tuple[float, ...]:
        steps = (1 << self.bits) - 1
        return tuple(scale * (offset + steps) for scale, offset in zip(self.scale, self.offset, strict=True))


@dataclass(frozen=True)
class Overrides:
    version: str
    activations: Mapping[str, QualcommEncoding]
    parameters: Mapping[str, QualcommEncoding]


@dataclass(frozen=True)
class QualcommRange:
    bits: int
    minimum: float
    maximum: float


@dataclass(frozen=True)
class TensorRanges:
    """One range, or one for each channel, by tensor."""

    activations: Mapping[str, tuple[QualcommRange, ...]]
    parameters: Mapping[str, tuple[QualcommRange, ...]]


class QualcommEncodingsFormat(ParameterFormat):
    name = _NAME
    files: Mapping[str, Roles | None] = {_NEW: _ROLES, _OLD: _ROLES, _RANGES: _ROLES, FLOAT_MODEL: ()}

    def write_parameters(self, network: FloatNetwork) -> Written:
        activations, parameters = _encodings(network)
        notes: list[str] = []
        if any(tensor.role == "bias" for tensor in network.deployment.parameters):
            notes.append(
                "quantization overrides hold no biases: give the converter --bias_bitwidth 32, "
                "its scale is that of input times weight"
            )
        narrow = [tensor.tensor for tensor in network.deployment.activations if tensor.scheme.grid.narrow]
        if narrow:
            notes.append(f"{_NAME} cannot leave out a code: {', '.join(narrow)} may get the least one")
        files = {
            _NEW: as_json(_overrides("1.0.0", _as_1_0_0, activations, parameters)),
            _OLD: as_json(_overrides("0.6.1", _as_0_6_1, activations, parameters)),
            _RANGES: as_json(ranges(network)),
        }
        return Written(files, tuple(notes))

    def parameter_facts(self, content: bytes) -> Iterator[TensorFacts]:
        if "version" not in parse_json(content, _NAME):
            yield from range_facts(content)
            return
        held = read_overrides(content)
        for name, one in {**held.activations, **held.parameters}.items():
            yield TensorFacts(name, {"scale": one.scale, "offset": one.offset, "bits": one.bits})


FORMAT = QualcommEncodingsFormat()


def read_overrides(content: bytes) -> Overrides:
    """Either version; which one, the file says."""
    held = parse_json(content, _NAME)
    version = held.get("version")
    readers: dict[str, Callable[[Any], dict[str, QualcommEncoding]]] = {"0.6.1": _from_0_6_1, "1.0.0": _from_1_0_0}
    read = readers.get(str(version))
    if read is None:
        raise unreadable(_NAME, f"its version is {version!r}; Detent reads 0.6.1 and 1.0.0")
    try:
        return Overrides(str(version), read(held["activation_encodings"]), read(held["param_encodings"]))
    except (KeyError, TypeError, IndexError) as error:
        raise unreadable(_NAME, f"an encoding lacks {error}") from None


def read_ranges(content: bytes) -> TensorRanges:
    held = parse_json(content, _NAME)

    def section(name: str) -> dict[str, tuple[QualcommRange, ...]]:
        entries: dict[str, list[dict[str, Any]]] = held.get(name, {})
        return {
            tensor: tuple(QualcommRange(one["bitwidth"], one["min"], one["max"]) for one in given)
            for tensor, given in entries.items()
        }

    try:
        return TensorRanges(section("activation_encodings"), section("param_encodings"))
    except (AttributeError, KeyError, TypeError) as error:
        raise unreadable(_NAME, f"it has no ranges by tensor: {error}") from None


def range_facts(content: bytes) -> Iterator[TensorFacts]:
    """The facts of a file in MQBench's format."""
    held = read_ranges(content)
    for name, given in {**held.activations, **held.parameters}.items():
        full = ([one.minimum for one in given], [one.maximum for one in given])
        yield TensorFacts(name, {"full_range": full, "bits": given[0].bits})


def ranges(network: FloatNetwork) -> dict[str, Any]:
    """The form of MQBench."""
    activations, parameters = _encodings(network)
    return {"activation_encodings": _as_ranges(activations), "param_encodings": _as_ranges(parameters)}


def _encodings(network: FloatNetwork) -> tuple[dict[str, QualcommEncoding], dict[str, QualcommEncoding]]:
    activations = {name: _encoding(tensor) for name, tensor in network.activations.items()}
    weights = {name: _encoding(tensor) for name, tensor in network.parameters.items() if tensor.role == "weight"}
    return activations, weights


def _encoding(tensor: DeployedTensor) -> QualcommEncoding:
    grid = integers(tensor, _NAME)
    no_groups(tensor, _NAME)
    # The codes of a narrow grid are among those of the full one: a parameter keeps all of its numbers.
    least = grid.like(narrow=False).qmin
    return QualcommEncoding(
        grid.bits,
        grid.signed and tensor.scheme.symmetric,
        tuple(np.atleast_1d(tensor.scale).tolist()),
        tuple((least - np.atleast_1d(tensor.zero_point)).tolist()),
        not isinstance(tensor.scheme.granularity, PerTensor),
    )


def _overrides(
    version: str,
    entries: Callable[[Mapping[str, QualcommEncoding]], Any],
    activations: Mapping[str, QualcommEncoding],
    parameters: Mapping[str, QualcommEncoding],
) -> dict[str, Any]:
    return {
        "version": version,
        "activation_encodings": entries(activations),
        "param_encodings": entries(parameters),
    }


def _as_1_0_0(encodings: Mapping[str, QualcommEncoding]) -> list[dict[str, Any]]:
    return [
        {
            "name": name,
            "dtype": "INT",
            "enc_type": "PER_CHANNEL" if encoding.per_channel else "PER_TENSOR",
            "bw": encoding.bits,
            "is_sym": encoding.symmetric,
            "scale": list(encoding.scale),
            "offset": list(encoding.offset),
        }
        for name, encoding in encodings.items()
    ]


def _from_1_0_0(entries: list[dict[str, Any]]) -> dict[str, QualcommEncoding]:
    return {
        entry["name"]: QualcommEncoding(
            entry["bw"],
            entry["is_sym"],
            tuple(entry["scale"]),
            tuple(int(offset) for offset in entry["offset"]),
            entry["enc_type"] == "PER_CHANNEL",
        )
        for entry in entries
    }


def _as_0_6_1(encodings: Mapping[str, QualcommEncoding]) -> dict[str, list[dict[str, Any]]]:
    return {
        name: [
            {
                "bitwidth": encoding.bits,
                "dtype": "int",
                "is_symmetric": str(encoding.symmetric),
                "min": low,
                "max": high,
                "scale": scale,
                "offset": offset,
            }
            for low, high, scale, offset in zip(
                encoding.minimum, encoding.maximum, encoding.scale, encoding.offset, strict=True
            )
        ]
        for name, encoding in encodings.items()
    }


def _from_0_6_1(entries: dict[str, list[dict[str, Any]]]) -> dict[str, QualcommEncoding]:
    """One entry may be a tensor's or that of its only channel: it reads as a tensor's."""
    return {
        name: QualcommEncoding(
            given[0]["bitwidth"],
            given[0]["is_symmetric"] == "True",
            tuple(one["scale"] for one in given),
            tuple(int(one["offset"]) for one in given),
            len(given) > 1,
        )
        for name, given in entries.items()
    }


def _as_ranges(encodings: Mapping[str, QualcommEncoding]) -> dict[str, list[dict[str, Any]]]:
    return {
        name: [
            {"bitwidth": encoding.bits, "min": low, "max": high}
            for low, high in zip(encoding.minimum, encoding.maximum, strict=True)
        ]
        for name, encoding in encodings.items()
    }

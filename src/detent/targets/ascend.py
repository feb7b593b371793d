"""Huawei Ascend, quantized by AMCT records.

Huawei Ascend: the record file of AMCT, text of a protocol buffer, an entry for every quantized operation.

    record {
      key: "conv1"
      value {
        scale_d: 0.05       the input of the operation
        offset_d: -28       counted from -128: the zero point of an int8, or of a uint8 minus 128
        scale_w: 0.0125     its weight: one for all, or one for each channel
        offset_w: 0         always
      }
    }

PPQ also writes channels, height and width. They are fields of AMCT for Caffe; the one for ONNX does not know them, and
a protocol buffer's text with an unknown field is refused.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from detent.graph import WEIGHTED
from detent.ir import DeployedTensor, Trait, ops_with
from detent.numerics import PerChannel, PerTensor, Rounding
from detent.planning import Backend, SupportedSchemes, quantize_inputs
from detent.targets.base import Target, TensorFacts, Written
from detent.targets.base.content import shortest, unreadable
from detent.targets.base.float_network import FLOAT_MODEL, KEEPS_VALUES, FloatNetwork, ParameterFormat
from detent.targets.base.format import Roles
from detent.targets.base.limits import integers, no_groups, on_one_scale, refusal, symmetric

__all__ = ["ASCEND", "FORMAT", "TARGET", "AscendRecord", "AscendRecordFormat", "read_records"]

ASCEND = Backend(
    name="ascend",
    about="Huawei Ascend",
    weight=SupportedSchemes(granularities=(PerChannel, PerTensor), roundings=(Rounding.HALF_AWAY,)),
    per_tensor_weights=("linear",),
    # Written as offset_d = zero point - 128.
    activation=SupportedSchemes(signed=(False, True), symmetric=(False, True), roundings=(Rounding.HALF_AWAY,)),
    # A record holds a scale for the input of a layer and for its weight, and none for its output.
    rules=quantize_inputs(*WEIGHTED, "avgpool"),
    passthrough=(),
    files=("onnx", "ascend_record"),
)

TARGET = Target(backend=ASCEND, formats={"ascend_record": "detent.targets.ascend:FORMAT"})


_NAME = "ascend_record"
_FILE = "ascend_record.txt"
_LEAST = float(np.finfo(np.float32).eps)
"""AMCT refuses scales below this, and above its reciprocal."""

_OPERATIONS = ops_with(Trait.WEIGHTED) | {"AveragePool"}
_PER_CHANNEL = ops_with(Trait.CONVOLUTION)


@dataclass(frozen=True)
class AscendRecord:
    """`scale_w` is empty for an operation without weights."""

    scale_d: float
    offset_d: int
    scale_w: tuple[float, ...] = ()


class AscendRecordFormat(ParameterFormat):
    name = _NAME
    files: Mapping[str, Roles | None] = {_FILE: (), FLOAT_MODEL: ()}

    def write_parameters(self, network: FloatNetwork) -> Written:
        records: list[str] = []
        unsaid: list[str] = []
        for op in network.ops:
            reads = network.reads(op)
            data = reads.get(0)
            if data is None:
                continue
            if op.type in KEEPS_VALUES:
                continue
            if op.type not in _OPERATIONS:
                unsaid.append(op.name)
                continue
            weight = reads.get(1)
            if weight is not None and weight.role == "activation":
                unsaid.append(op.name)
                continue
            records.append(_record(op.name, _data_lines(data) + _weight_lines(weight, op.type)))
        names = ", ".join(unsaid)
        notes = (f"AMCT has no record for {names}: float on Ascend, integers in model.onnx",) if unsaid else ()
        return Written({_FILE: "".join(records).encode()}, notes)

    def parameter_facts(self, content: bytes) -> Iterator[TensorFacts]:
        for op, record in read_records(content).items():
            yield TensorFacts(op, {"scale": record.scale_d, "offset": -128 - record.offset_d}, 0)
            if record.scale_w:
                yield TensorFacts(op, {"scale": record.scale_w}, 1)


FORMAT = AscendRecordFormat()


def read_records(content: bytes) -> dict[str, AscendRecord]:
    found: dict[str, AscendRecord] = {}
    text = content.decode()
    for block in re.finditer(r'record\s*\{\s*key:\s*"((?:[^"\\]|\\.)*)"\s*value\s*\{([^}]*)\}\s*\}', text):
        fields: dict[str, list[str]] = {}
        for name, value in re.findall(r"(\w+):\s*(\S+)", block[2]):
            fields.setdefault(name, []).append(value)
        if "scale_d" not in fields or "offset_d" not in fields:
            raise unreadable(_NAME, f"the record of {block[1]!r} has no scale_d or offset_d")
        found[re.sub(r"\\(.)", r"\1", block[1])] = AscendRecord(
            float(fields["scale_d"][0]), int(fields["offset_d"][0]), tuple(map(float, fields.get("scale_w", [])))
        )
    if text.count("record") and not found:
        raise unreadable(_NAME, "it has no record with a key and a value")
    return found


def _record(name: str, lines: list[str]) -> str:
    key = name.replace("\\", "\\\\").replace('"', '\\"')
    body = "".join(f"    {line}\n" for line in lines)
    return f'record {{\n  key: "{key}"\n  value {{\n{body}  }}\n}}\n'


def _data_lines(tensor: DeployedTensor) -> list[str]:
    grid = integers(tensor, _NAME, bits=(8,))
    on_one_scale(tensor, _NAME)
    _require_usual_scales(tensor)
    offset = int(tensor.zero_point) - (0 if grid.signed else 128)
    return [f"scale_d: {shortest(tensor.scale)}", f"offset_d: {offset}"]


def _weight_lines(tensor: DeployedTensor | None, op_type: str) -> list[str]:
    if tensor is None:
        return []
    integers(tensor, _NAME, bits=(8,), signed=True)
    symmetric(tensor, _NAME)
    no_groups(tensor, _NAME)
    if op_type not in _PER_CHANNEL:
        on_one_scale(tensor, _NAME)
    _require_usual_scales(tensor)
    scales = np.atleast_1d(tensor.scale)
    return [f"scale_w: {shortest(scale)}" for scale in scales] + ["offset_w: 0"] * len(scales)


def _require_usual_scales(tensor: DeployedTensor) -> None:
    scales = tensor.scale.astype(np.float64)
    # PPQ moves such scales to the bound, and so the grid away from the simulation.
    if np.any(scales < _LEAST) or np.any(scales > 1 / _LEAST):
        raise refusal(
            _NAME, tensor, f"a scale is outside of {_LEAST:.3g} to {1 / _LEAST:.3g}", "keep this layer in float"
        )

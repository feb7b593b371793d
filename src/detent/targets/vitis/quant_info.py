"""Vitis AI's `quant_info.json`: for every tensor of a DPU its width and the position of the binary point.

    {"param": {name: [[bits, position]]}, "output": {...}, "input": {}, "fast_finetuned": ..., "bias_corrected": ...}

A position p means the scale 2^-p. The input of the network is the output of an input node, so that "input" stays
empty, as it is in the files of vai_q_pytorch. That tool names tensors after its own trace of the PyTorch model: the
names here are those of the ONNX graph.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from detent.ir import DeployedTensor
from detent.targets.base import Deployment, Format, TensorFacts, Written
from detent.targets.base.content import as_json, parse_json, unreadable
from detent.targets.base.format import EVERY_ROLE, Roles
from detent.targets.base.limits import by_name, exponents, float_readers, integers, on_one_scale, symmetric

__all__ = ["FORMAT", "FixPoint", "QuantInfo", "VitisQuantInfoFormat", "read_quant_info"]

_NAME = "vitis_quant_info"
_FILE = "quant_info.json"


@dataclass(frozen=True)
class FixPoint:
    """`bits` wide, with the scale 2^-`position`."""

    bits: int
    position: int

    @property
    def scale(self) -> float:
        return 2.0**-self.position


@dataclass(frozen=True)
class QuantInfo:
    parameters: Mapping[str, FixPoint]
    outputs: Mapping[str, FixPoint]
    inputs: Mapping[str, FixPoint] = field(default_factory=dict)


class VitisQuantInfoFormat(Format):
    name = _NAME
    files: Mapping[str, Roles | None] = {_FILE: EVERY_ROLE}

    def write(self, deployment: Deployment) -> Written:
        parameters = {tensor.tensor: fix_point(tensor, _NAME) for tensor in deployment.parameters}
        outputs = {name: fix_point(tensor, _NAME) for name, tensor in by_name(deployment, _NAME).items()}
        content = {
            "param": _entries(parameters),
            "output": _entries(outputs),
            "input": {},
            # They say that bias_corr.pth and param.pth lie beside the file; here weights and biases are in model.onnx.
            "fast_finetuned": False,
            "bias_corrected": False,
            "version": "detent",
        }
        note = f"{_FILE} names tensors as model.onnx does: vai_q_pytorch's own traces have other names"
        return Written({_FILE: as_json(content)}, (*float_readers(deployment, _NAME), note))

    def facts(self, file: str, files: Mapping[str, bytes]) -> Iterator[TensorFacts]:
        held = read_quant_info(files[file])
        for name, one in {**held.parameters, **held.outputs, **held.inputs}.items():
            yield TensorFacts(name, {"scale": one.scale, "bits": one.bits})


FORMAT = VitisQuantInfoFormat()


def read_quant_info(content: bytes) -> QuantInfo:
    """Also of files that vai_q_pytorch wrote for a DPU."""
    held = parse_json(content, _NAME)
    sections = [_fix_points(held.get(section)) for section in ("param", "output", "input")]
    return QuantInfo(*sections)


def fix_point(tensor: DeployedTensor, format_name: str) -> FixPoint:
    grid = integers(tensor, format_name, signed=True)
    symmetric(tensor, format_name)
    on_one_scale(tensor, format_name)
    return FixPoint(grid.bits, -int(exponents(tensor, format_name)))


def _entries(points: Mapping[str, FixPoint]) -> dict[str, list[list[int]]]:
    return {name: [[point.bits, point.position]] for name, point in points.items()}


def _fix_points(section: Any) -> dict[str, FixPoint]:
    if not isinstance(section, dict):
        raise unreadable(_NAME, "it lacks 'param', 'output' or 'input'")
    found: dict[str, FixPoint] = {}
    for name, entries in section.items():
        if len(entries) != 1 or len(entries[0]) != 2:
            raise unreadable(_NAME, f"{name!r} is {entries}, not one pair of width and position, as for a DPU")
        found[name] = FixPoint(*entries[0])
    return found

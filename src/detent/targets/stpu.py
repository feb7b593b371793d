"""SenseTime STPU.

SenseTime STPU: ranges of activations and weights, and the scales of biases, as MQBench writes them.

    {tensor: {"min", "max", "emin"}, "<node>_weights": {"min", "max"}, "<node>_bias": {"alpha", "zero_point": 0}}

`emin` is the least exponent that the accumulator of an operation keeps; its rules are MQBench's, which gives no reasons
for them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from detent.graph import AVERAGE_POOLS, WEIGHTED
from detent.ir import DeployedTensor, Op, Trait, ops_with
from detent.planning import FUSED, MOVES, Backend, SupportedSchemes, chains, quantize_io
from detent.targets.base import Target, TensorFacts, Written
from detent.targets.base.content import as_json, parse_json
from detent.targets.base.float_network import FLOAT_MODEL, FloatNetwork, ParameterFormat
from detent.targets.base.format import Roles
from detent.targets.base.limits import integers, on_one_scale, symmetric

__all__ = ["FORMAT", "STPU", "TARGET", "StpuEntry", "StpuMinmaxFormat", "read_stpu"]

STPU = Backend(
    name="stpu",
    about="SenseTime STPU",
    weight=SupportedSchemes(narrow=(True,)),
    activation=SupportedSchemes(narrow=(True,)),
    bias="int32",
    rules=quantize_io(*WEIGHTED, "add", "mul", *AVERAGE_POOLS, "batchnorm", "prelu", "resize"),
    fusions=(*FUSED, *chains(("add", "mul"))),
    # Its file has one range for all that is joined.
    passthrough=(*MOVES, "concat"),
    common_qparams=("concat",),
    quantize_outputs=True,
    files=("onnx", "stpu_minmax"),
)

TARGET = Target(backend=STPU, formats={"stpu_minmax": "detent.targets.stpu:FORMAT"})


_NAME = "stpu_minmax"
_FILE = "stpu_minmax.json"
_GREATEST = 127
_CONVOLUTIONS = ops_with(Trait.CONVOLUTION)


@dataclass(frozen=True)
class StpuEntry:
    """A range and perhaps an `emin`, or for a bias its scale."""

    minimum: float | None = None
    maximum: float | None = None
    emin: int | None = None
    scale: float | None = None


class StpuMinmaxFormat(ParameterFormat):
    name = _NAME
    files: Mapping[str, Roles | None] = {_FILE: ("activation",), FLOAT_MODEL: ()}

    def write_parameters(self, network: FloatNetwork) -> Written:
        ranges: dict[str, dict[str, Any]] = {name: _range(tensor) for name, tensor in network.moved_backwards().items()}
        notes: list[str] = []
        for op in network.ops:
            if op.type == "Sigmoid":
                notes += _set_table(op.outputs[0], ranges)
            if op.type == "Concat" and op.outputs[0] in ranges:
                notes += _pass_to_inputs(op, ranges)
        for op in network.ops:
            clipping = network.clipping_of(op)
            if clipping is not None and clipping.outputs[0] in ranges:
                ranges[op.outputs[0]] = dict(ranges[clipping.outputs[0]])
        parameters: dict[str, dict[str, Any]] = {}
        for op in network.ops:
            parameters.update(_parameters(op, network))
            emin = _emin(op, network, ranges, parameters)
            if emin is not None:
                ranges[op.outputs[0]]["emin"] = emin
        return Written({_FILE: as_json({**ranges, **parameters})}, tuple(notes))

    def parameter_facts(self, content: bytes) -> Iterator[TensorFacts]:
        for name, one in read_stpu(content).items():
            if one.scale is not None:
                yield TensorFacts(name.removesuffix("_bias"), {"scale": one.scale}, 2)
            elif name.endswith("_weights"):
                yield TensorFacts(name.removesuffix("_weights"), {"magnitude": one.maximum}, 1)
            else:
                yield TensorFacts(name, {"magnitude": one.maximum})


FORMAT = StpuMinmaxFormat()


def read_stpu(content: bytes) -> dict[str, StpuEntry]:
    return {
        name: StpuEntry(entry.get("min"), entry.get("max"), entry.get("emin"), entry.get("alpha"))
        for name, entry in parse_json(content, _NAME).items()
    }


def _range(tensor: DeployedTensor) -> dict[str, float]:
    integers(tensor, _NAME, bits=(8,), signed=True)
    symmetric(tensor, _NAME)
    on_one_scale(tensor, _NAME)
    greatest = float(np.float32(tensor.scale * _GREATEST))
    return {"min": -greatest, "max": greatest}


def _set_table(tensor: str, ranges: dict[str, dict[str, Any]]) -> list[str]:
    """Give a sigmoid's result the range of its table, whatever was calibrated; a note if that is another."""
    table = {"min": -1.0, "max": 1.0}
    differs = ranges.get(tensor, table) != table
    ranges[tensor] = table
    return [f"STPU's sigmoid gives -1 to 1: {tensor} has that range, not its own"] if differs else []


def _pass_to_inputs(op: Op, ranges: dict[str, dict[str, Any]]) -> list[str]:
    """Give what is concatenated the scale of the result; a note if some had another."""
    result = op.outputs[0]
    moved = [name for name in op.input_names if ranges.get(name, ranges[result]) != ranges[result]]
    for name in op.input_names:
        ranges[name] = dict(ranges[result])
    return [f"STPU concatenates on one scale: {', '.join(moved)} have that of {result}, not their own"] if moved else []


def _parameters(op: Op, network: FloatNetwork) -> dict[str, dict[str, Any]]:
    reads = network.reads(op)
    if op.type not in ops_with(Trait.WEIGHTED) or 1 not in reads or reads[1].role != "weight":
        return {}
    found: dict[str, dict[str, Any]] = {f"{op.name}_weights": _range(reads[1])}
    if len(op.inputs) > 2 and 0 in reads:
        scale = float(reads[0].scale * reads[1].scale)
        found[f"{op.name}_bias"] = {"alpha": scale, "zero_point": 0}
    return found


def _emin(
    op: Op,
    network: FloatNetwork,
    ranges: dict[str, dict[str, Any]],
    parameters: dict[str, dict[str, Any]],
) -> int | None:
    if op.outputs[0] not in ranges:
        return None
    greatest = ranges[op.outputs[0]]["max"]
    if op.type == "Gemm":
        return 128
    if op.type == "Resize":
        return _biased_exponent(greatest) - 20
    weights = parameters.get(f"{op.name}_weights")
    if op.type in _CONVOLUTIONS and weights is not None and op.input_names[0] in ranges:
        terms = math.prod(network.network.constants[op.input_names[1]].shape[1:])
        sum_of_terms = math.sqrt(terms) * ranges[op.input_names[0]]["max"] * weights["max"]
        return _biased_exponent(max(sum_of_terms, greatest)) - 10
    return None


def _biased_exponent(value: float) -> int:
    """The biased exponent of a float32; denormal numbers have that of the smallest normal ones.

    >>> _biased_exponent(1.0), _biased_exponent(3.9), _biased_exponent(1e-45)
    (127, 128, 1)
    """
    return min(max(math.frexp(value)[1] - 1 + 127, 1), 254) if value else 0

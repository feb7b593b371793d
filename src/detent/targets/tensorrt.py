"""TensorRT with explicit Q/DQ, the only way since version 11.

TensorRT up to 10.x with implicit quantization: ranges for `setDynamicRange`, and the calibration cache.

Version 11 takes only the Q and DQ nodes of `model.onnx`; these files are for engines that are built from
`float.onnx` with the INT8 flag.

    tensorrt_ranges.json        {"act_quant_info": {tensor: greatest magnitude}}            the form of PPQ
    tensorrt_clip_ranges.json   {"tensorrt": {"blob_range": {tensor: greatest magnitude}}}  the form of MQBench
    tensorrt_calibration.cache  a header, then `tensor: scale`, the scale as the hex digits of its float32
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from detent.graph import AVERAGE_POOLS, WEIGHTED
from detent.numerics import PerChannel, PerTensor
from detent.planning import FUSED, MOVES, Backend, SupportedSchemes, chains, quantize_inputs
from detent.targets.base import Deployment, Target, TensorFacts, Written
from detent.targets.base.content import as_json, parse_json, unreadable
from detent.targets.base.float_network import FLOAT_MODEL, FloatNetwork, ParameterFormat
from detent.targets.base.format import Roles
from detent.targets.base.limits import integers, on_one_scale, symmetric

__all__ = [
    "FORMAT",
    "TARGET",
    "TENSORRT",
    "CalibrationCache",
    "TensorrtRangesFormat",
    "dynamic_ranges",
    "range_facts",
    "read_calibration_cache",
    "read_dynamic_ranges",
]

TENSORRT = Backend(
    name="tensorrt",
    about="NVIDIA TensorRT",
    weight=SupportedSchemes(narrow=(True, False), granularities=(PerChannel, PerTensor)),
    # NVIDIA's documents give activations [-128, 127] and zero point 0; MQBench takes [-127, 127] for both.
    activation=SupportedSchemes(),
    rules=quantize_inputs(*WEIGHTED, "matmul", "add", "mul", *AVERAGE_POOLS, "batchnorm", "prelu"),
    fusions=(
        *FUSED,
        *chains(WEIGHTED, ("sigmoid", "silu", "gelu", "softplus"), norm=True),
        *chains(("add",)),
        ("mul", "add"),
    ),
    passthrough=(*MOVES, "resize"),
    # A convolution takes the other operand of the residual add into its epilogue. MQBench has this rule but gives it to
    # no backend, and quantizes both operands.
    unquantized_edges=(("conv", "add"),),
    repeats_grids=False,
    arbitrary_qdq_placement=True,
    files=("onnx", "tensorrt_ranges"),
)

TARGET = Target(backend=TENSORRT, formats={"tensorrt_ranges": "detent.targets.tensorrt:FORMAT"})


_NAME = "tensorrt_ranges"
_RANGES, _CLIP_RANGES = "tensorrt_ranges.json", "tensorrt_clip_ranges.json"
_CACHE = "tensorrt_calibration.cache"
_ROLES: Roles = ("activation",)
_HEADER = "TRT-100300-EntropyCalibration2"
_GREATEST = 127
"""TensorRT's scale is the range divided by this, also where the grid has a code -128."""


@dataclass(frozen=True)
class CalibrationCache:
    """`header` names the version of TensorRT and the algorithm; another version refuses the file."""

    header: str
    scales: Mapping[str, float]

    def to_bytes(self) -> bytes:
        lines = [f"{name}: {struct.unpack('>I', struct.pack('>f', scale))[0]:x}" for name, scale in self.scales.items()]
        return "\n".join([self.header, *lines, ""]).encode()


class TensorrtRangesFormat(ParameterFormat):
    name = _NAME
    files: Mapping[str, Roles | None] = {_RANGES: _ROLES, _CLIP_RANGES: _ROLES, _CACHE: _ROLES, FLOAT_MODEL: ()}

    def write_parameters(self, network: FloatNetwork) -> Written:
        scales = _scales(network)
        ranges = dynamic_ranges(network)
        notes = [
            f"{_CACHE} is headed {_HEADER}: put the version of your TensorRT there. TensorRT 11 takes model.onnx only"
        ]
        moved = _regridded(network.deployment)
        if moved:
            notes.append(
                f"TensorRT finds the scales of weights itself (greatest magnitude / {_GREATEST}); in "
                f"{', '.join(moved)} these are others than model.onnx has"
            )
        files = {
            _RANGES: as_json({"act_quant_info": ranges}),
            _CLIP_RANGES: as_json({"tensorrt": {"blob_range": ranges}}),
            _CACHE: CalibrationCache(_HEADER, scales).to_bytes(),
        }
        return Written(files, tuple(notes))

    def parameter_facts(self, content: bytes) -> Iterator[TensorFacts]:
        if not content.startswith(b"TRT-"):
            yield from range_facts(content)
            return
        for name, scale in read_calibration_cache(content).scales.items():
            yield TensorFacts(name, {"scale": scale})


FORMAT = TensorrtRangesFormat()


def read_dynamic_ranges(content: bytes) -> dict[str, float]:
    """Tensor to greatest magnitude, from either form."""
    held = parse_json(content, _NAME)
    ranges = held.get("act_quant_info", held.get("tensorrt", {}).get("blob_range"))
    if not isinstance(ranges, dict):
        raise unreadable(_NAME, "it has neither 'act_quant_info' nor 'tensorrt' with a 'blob_range'")
    return {name: float(value) for name, value in ranges.items()}


def range_facts(content: bytes) -> Iterator[TensorFacts]:
    """The facts of a file in either format."""
    yield from (TensorFacts(name, {"magnitude": most}) for name, most in read_dynamic_ranges(content).items())


def read_calibration_cache(content: bytes) -> CalibrationCache:
    header, *lines = content.decode().splitlines()
    if not header.startswith("TRT-"):
        raise unreadable(_NAME, f"its first line is {header!r}")
    scales: dict[str, float] = {}
    for line in lines:
        name, _, digits = line.rpartition(": ")
        try:
            scales[name] = struct.unpack(">f", struct.pack(">I", int(digits, 16)))[0]
        except (ValueError, struct.error):
            raise unreadable(_NAME, f"it has the line {line!r}") from None
    return CalibrationCache(header, scales)


def dynamic_ranges(network: FloatNetwork) -> dict[str, float]:
    """Tensor to greatest magnitude."""
    # MQBench multiplies by max(-qmin, qmax), which is 128 on a full grid: the engine's scale then is 1/127 too large.
    return {name: float(np.float32(scale * _GREATEST)) for name, scale in _scales(network).items()}


def _scales(network: FloatNetwork) -> dict[str, float]:
    tensors = network.moved_backwards()
    for tensor in tensors.values():
        integers(tensor, _NAME, bits=(8,), signed=True)
        symmetric(tensor, _NAME)
        on_one_scale(tensor, _NAME)
    return {name: float(tensor.scale) for name, tensor in tensors.items()}


def _regridded(deployment: Deployment) -> list[str]:
    """Operations with a weight whose scale is not that of its greatest code."""
    graph = deployment.graph
    moved: dict[str, None] = {}
    for op in graph.ops:
        for read in op.inputs:
            if read is None or read.encoding is None or read.tensor not in graph.constants:
                continue
            if read.encoding.dtype != "int8":
                continue
            magnitude = np.abs(graph.constants[read.tensor])
            axis = read.encoding.axis
            others = tuple(dim for dim in range(magnitude.ndim) if axis is None or dim != axis % magnitude.ndim)
            if np.any(magnitude.max(axis=others) != _GREATEST):
                moved[op.name] = None
    return list(moved)

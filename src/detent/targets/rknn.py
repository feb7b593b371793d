"""Rockchip NPU.

Rockchip: the quantization file of rknn-toolkit2's hybrid quantization, in YAML.

The toolkit takes the Q and DQ nodes of `model.onnx` as they are. Where it finds other grids from the ranges, as it does
for symmetric tensors, these are the numbers to put into the file that `hybrid_quantization_step1` makes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import yaml

from detent.graph import AVERAGE_POOLS, CLIPPING
from detent.ir import DeployedTensor
from detent.numerics import PerChannel, PerTensor
from detent.planning import FUSED, MOVES, Backend, SupportedSchemes, chains, quantize_io
from detent.targets.base import Target, TensorFacts, Written
from detent.targets.base.content import unreadable
from detent.targets.base.float_network import FLOAT_MODEL, FloatNetwork, ParameterFormat
from detent.targets.base.format import Roles
from detent.targets.base.limits import integers, no_groups

__all__ = ["FORMAT", "RKNN", "TARGET", "RknnFormat", "RknnGrid", "read_rknn"]

RKNN = Backend(
    name="rknn",
    about="Rockchip RKNN",
    weight=SupportedSchemes(narrow=(True, False), granularities=(PerChannel, PerTensor)),
    # Affine int8, where PPQ has uint8. The simulator gives a symmetric tensor another scale, so there is no such offer.
    activation=SupportedSchemes(symmetric=(False,)),
    bias="int32",
    rules=quantize_io(
        "conv", "linear", "matmul", "add", "mul", "concat", *AVERAGE_POOLS, *CLIPPING, "leaky_relu", "sigmoid"
    ),
    fusions=(*FUSED, *chains(("add",))),
    passthrough=(*MOVES, "resize"),
    quantize_outputs=True,
    files=("onnx", "rknn", "ppq_json"),
)

TARGET = Target(backend=RKNN, formats={"rknn": "detent.targets.rknn:FORMAT"})


_NAME = "rknn"
_FILE = "rknn.quantization.cfg"


@dataclass(frozen=True)
class RknnGrid:
    """`real = scale * (code - zero_point)`; several for channels."""

    affine: bool
    per_channel: bool
    dtype: str
    minimum: tuple[float, ...]
    maximum: tuple[float, ...]
    scale: tuple[float, ...]
    zero_point: tuple[int, ...]


class RknnFormat(ParameterFormat):
    name = _NAME
    files: Mapping[str, Roles | None] = {_FILE: ("activation", "weight"), FLOAT_MODEL: ()}

    def write_parameters(self, network: FloatNetwork) -> Written:
        tensors = {**network.activations, **{n: t for n, t in network.parameters.items() if t.role == "weight"}}
        content = {
            "custom_quantize_layers": {},
            "quantize_parameters": {name: _entry(tensor) for name, tensor in tensors.items()},
        }
        text = yaml.safe_dump(content, sort_keys=False, default_flow_style=None, width=10**6)
        note = f"{_FILE} names tensors as {FLOAT_MODEL} does: the toolkit may rename those it folds"
        return Written({_FILE: text.encode()}, (note,))

    def parameter_facts(self, content: bytes) -> Iterator[TensorFacts]:
        for name, one in read_rknn(content).items():
            grid = {"scale": one.scale, "zero_point": one.zero_point, "type": one.dtype}
            yield TensorFacts(name, {**grid, "range": (one.minimum, one.maximum)})


FORMAT = RknnFormat()


def read_rknn(content: bytes) -> dict[str, RknnGrid]:
    try:
        entries = yaml.safe_load(content)["quantize_parameters"]
        return {
            name: RknnGrid(
                entry["qtype"] == "asymmetric_quantized",
                entry["qmethod"] == "channel",
                entry["dtype"],
                tuple(entry["min"]),
                tuple(entry["max"]),
                tuple(entry["scale"]),
                tuple(entry["zero_point"]),
            )
            for name, entry in entries.items()
        }
    except (yaml.YAMLError, KeyError, TypeError, AttributeError) as error:
        raise unreadable(_NAME, f"it is not a quantization file: {error}") from None


def _entry(tensor: DeployedTensor) -> dict[str, Any]:
    grid = integers(tensor, _NAME, bits=(8, 16), signed=True)
    no_groups(tensor, _NAME)
    low, high = np.atleast_1d(tensor.minimum).tolist(), np.atleast_1d(tensor.maximum).tolist()
    return {
        "qtype": "symmetric_quantized" if tensor.scheme.symmetric else "asymmetric_quantized",
        "qmethod": "layer" if isinstance(tensor.scheme.granularity, PerTensor) else "channel",
        "dtype": f"int{grid.bits}",
        "min": low,
        "max": high,
        "scale": np.atleast_1d(tensor.scale).tolist(),
        "zero_point": np.atleast_1d(tensor.zero_point).tolist(),
        "ori_min": list(low),
        "ori_max": list(high),
    }

"""Arm Compute Library. (The `acl` of the MQBench paper is Huawei's: that is `ascend`.)

Arm Compute Library: the data type and `QuantizationInfo` of each tensor, for users who build a graph with its API.

    {tensor: {"data_type": "QASYMM8_SIGNED", "scale": [...], "offset": [...]}}

They are the arguments of `arm_compute::TensorInfo`. If you have no graph of your own, use the .tflite file.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from detent.graph import AVERAGE_POOLS, CLIPPING, WEIGHTED
from detent.ir import DeployedTensor
from detent.numerics import PerChannel, PerTensor
from detent.planning import FUSED, MOVES, Backend, SupportedSchemes, chains, quantize_io
from detent.targets.base import Deployment, Format, Target, TensorFacts, Written
from detent.targets.base.content import as_json, parse_json, unreadable
from detent.targets.base.format import EVERY_ROLE, Roles
from detent.targets.base.limits import by_name, float_readers, integers, no_groups, refusal

__all__ = ["ACL", "FORMAT", "TARGET", "AclFormat", "AclTensor", "read_acl"]

ACL = Backend(
    name="acl",
    about="Arm Compute Library",
    # QSYMM8_PER_CHANNEL, or the QASYMM8_SIGNED and QASYMM8 of activations.
    weight=SupportedSchemes(
        narrow=(True, False),
        granularities=(PerChannel, PerTensor),
        also=(SupportedSchemes(signed=(True, False), symmetric=(False, True)),),
    ),
    activation=SupportedSchemes(signed=(True, False), narrow=(False,), symmetric=(False, True)),
    bias="int32",
    rules=quantize_io(
        *WEIGHTED,
        "add",
        "sub",
        "mul",
        "concat",
        *AVERAGE_POOLS,
        "mean",
        *CLIPPING,
        "leaky_relu",
        "prelu",
        "hardswish",
        "sigmoid",
        "tanh",
        "softmax",
    ),
    fusions=(*FUSED, *chains(("add", "sub", "mul"))),
    passthrough=(*MOVES, "pad", "resize"),
    # Kernels with a built-in output scale, as in LiteRT.
    ranges={"sigmoid": (0.0, 255 / 256), "softmax": (0.0, 255 / 256), "tanh": (-1.0, 127 / 128)},
    quantize_outputs=True,
    opset=21,  # as for LiteRT: a .tflite file has the operations that came after 17, such as Gelu
    arithmetic="tflite_reference",
    files=("tflite_micro", "acl"),
)

TARGET = Target(backend=ACL, formats={"acl": "detent.targets.acl:FORMAT"})


_NAME = "acl"
_FILE = "acl_tensors.json"
_TYPES = {
    "QASYMM8": "uint8",
    "QASYMM8_SIGNED": "int8",
    "QASYMM16": "uint16",
    "QSYMM8_PER_CHANNEL": "int8",
    "QSYMM16": "int16",
    "S32": "int32",
}


@dataclass(frozen=True)
class AclTensor:
    data_type: str
    scale: tuple[float, ...]
    offset: tuple[int, ...]


class AclFormat(Format):
    name = _NAME
    files: Mapping[str, Roles | None] = {_FILE: EVERY_ROLE}

    def write(self, deployment: Deployment) -> Written:
        tensors = {**by_name(deployment, _NAME), **{tensor.tensor: tensor for tensor in deployment.parameters}}
        entries = {
            name: {
                "data_type": _data_type(tensor),
                "scale": np.atleast_1d(tensor.scale).tolist(),
                "offset": np.atleast_1d(tensor.zero_point).tolist(),
            }
            for name, tensor in tensors.items()
        }
        return Written({_FILE: as_json(entries)}, float_readers(deployment, _NAME))

    def facts(self, file: str, files: Mapping[str, bytes]) -> Iterator[TensorFacts]:
        for name, one in read_acl(files[file]).items():
            kind = _TYPES.get(one.data_type)
            yield TensorFacts(name, {"scale": one.scale, "zero_point": one.offset, "type": kind})


FORMAT = AclFormat()


def read_acl(content: bytes) -> dict[str, AclTensor]:
    try:
        return {
            name: AclTensor(entry["data_type"], tuple(entry["scale"]), tuple(entry["offset"]))
            for name, entry in parse_json(content, _NAME).items()
        }
    except (KeyError, TypeError) as missing:
        raise unreadable(_NAME, f"an entry lacks {missing}") from None


def _data_type(tensor: DeployedTensor) -> str:
    grid = integers(tensor, _NAME)
    no_groups(tensor, _NAME)
    affine = bool(tensor.zero_point.any())
    match (grid.bits, grid.signed, isinstance(tensor.scheme.granularity, PerTensor)):
        case (32, True, _) if tensor.role == "bias":
            return "S32"
        case (8, True, False) if not affine:
            return "QSYMM8_PER_CHANNEL"
        case (8, True, True):
            return "QASYMM8_SIGNED"
        case (8, False, True):
            return "QASYMM8"
        case (16, True, True) if not affine:
            return "QSYMM16"
        case (16, False, True):
            return "QASYMM16"
    raise refusal(
        _NAME,
        tensor,
        "its data types are QASYMM8, QASYMM8_SIGNED, QSYMM8_PER_CHANNEL, QASYMM16, QSYMM16 and S32 for a bias",
        "choose a scheme that is one of them",
    )

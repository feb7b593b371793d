"""Tengine's `.scale` file: a line `tensor scale zero_point` for every activation, for `quant_tool_uint8` and its kin.

Its graph tool makes one operation of a convolution and the ReLU or ReLU6 behind it, and then asks for the
convolution's own output: that has the grid of the ReLU's. (MQBench has that rule, but looks for a node type "ReLU",
which ONNX does not have.)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from detent.deploy.deployment import DeployedTensor, Deployment
from detent.deploy.formats.content import shortest, unreadable
from detent.deploy.formats.limits import integers, on_one_scale, refusal
from detent.deploy.formats.network import Network

__all__ = ["TengineGrid", "read_scales", "write"]

_NAME = "tengine_scale"


@dataclass(frozen=True)
class TengineGrid:
    scale: float
    zero_point: int


def write(deployment: Deployment) -> Mapping[str, bytes]:
    network = Network.of(deployment, _NAME)
    # Weights are not written, but a tool that has one scale for each cannot keep those of channels.
    for tensor in deployment.tensors:
        on_one_scale(tensor, _NAME)
    tensors = network.moved_backwards()
    for node in network.nodes:
        clipping = network.clipping_of(node) if node.op_type == "Conv" else None
        if clipping is not None and clipping.output[0] in tensors:
            tensors.setdefault(node.output[0], tensors[clipping.output[0]])
    lines = [_line(name, tensor) for name, tensor in tensors.items()]
    return {"tengine.scale": "".join(lines).encode(), **network.file}


def read_scales(content: bytes) -> dict[str, TengineGrid]:
    found: dict[str, TengineGrid] = {}
    for line in content.decode().splitlines():
        parts = line.split()
        try:
            name, scale, zero_point = parts
            found[name] = TengineGrid(float(scale), int(zero_point))
        except ValueError:
            raise unreadable(_NAME, f"it has the line {line!r}") from None
    return found


def _line(name: str, tensor: DeployedTensor) -> str:
    integers(tensor, _NAME, bits=(8,))
    if len(name.split()) != 1:
        raise refusal(_NAME, tensor, f"the name {name!r} has a space, which ends a name there", "rename the tensor")
    return f"{name} {shortest(tensor.scale)} {int(tensor.zero_point)}\n"

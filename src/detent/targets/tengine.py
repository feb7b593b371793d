"""Tengine.

Tengine's `.scale` file: a line `tensor scale zero_point` for every activation, for tools such as
`quant_tool_uint8`.

Its graph tool makes one operation of a convolution and the ReLU or ReLU6 behind it, and then asks for the
convolution's own output: that has the grid of the ReLU's. (MQBench has that rule, but looks for a node type "ReLU",
which ONNX does not have.)
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from detent.graph import AVERAGE_POOLS, CLIPPING, WEIGHTED
from detent.ir import DeployedTensor
from detent.planning import FUSED, MOVES, Backend, SupportedSchemes, chains, quantize_io
from detent.targets.base import Target, TensorFacts, Written
from detent.targets.base.content import shortest, unreadable
from detent.targets.base.float_network import FLOAT_MODEL, FloatNetwork, ParameterFormat
from detent.targets.base.format import Roles
from detent.targets.base.limits import integers, on_one_scale, refusal

__all__ = ["FORMAT", "TARGET", "TENGINE", "TengineGrid", "TengineScaleFormat", "read_scales"]

TENGINE = Backend(
    name="tengine",
    about="Tengine, uint8",
    # One scale for a tensor, symmetric or affine: the tool that reads the scale file refuses channels.
    weight=SupportedSchemes(signed=(False, True), symmetric=(False, True)),
    activation=SupportedSchemes(signed=(False, True), symmetric=(False, True)),
    bias="int32",
    # PPQ's and MQBench's lists together.
    rules=quantize_io(
        *WEIGHTED,
        "matmul",
        "add",
        "mul",
        "concat",
        *AVERAGE_POOLS,
        "batchnorm",
        *CLIPPING,
        "leaky_relu",
        "prelu",
        "hardswish",
        "sigmoid",
        "softmax",
        "resize",
    ),
    # The parameters of a ReLU are copied to the convolution before it.
    fusions=(*FUSED, *chains(("add",))),
    passthrough=MOVES,
    quantize_outputs=True,
    files=("onnx", "tengine_scale"),
)

TARGET = Target(backend=TENGINE, formats={"tengine_scale": "detent.targets.tengine:FORMAT"})


_NAME = "tengine_scale"
_FILE = "tengine.scale"


@dataclass(frozen=True)
class TengineGrid:
    scale: float
    zero_point: int


class TengineScaleFormat(ParameterFormat):
    name = _NAME
    files: Mapping[str, Roles | None] = {_FILE: ("activation",), FLOAT_MODEL: ()}

    def write_parameters(self, network: FloatNetwork) -> Written:
        # Weights are not written, but a tool that has one scale for each cannot keep those of channels.
        for tensor in network.deployment.tensors:
            on_one_scale(tensor, _NAME)
        tensors = network.moved_backwards()
        for op in network.ops:
            clipping = network.clipping_of(op) if op.type == "Conv" else None
            if clipping is not None and clipping.outputs[0] in tensors:
                tensors.setdefault(op.outputs[0], tensors[clipping.outputs[0]])
        lines = [_line(name, tensor) for name, tensor in tensors.items()]
        return Written({_FILE: "".join(lines).encode()})

    def parameter_facts(self, content: bytes) -> Iterator[TensorFacts]:
        for name, one in read_scales(content).items():
            yield TensorFacts(name, {"scale": one.scale, "zero_point": one.zero_point})


FORMAT = TengineScaleFormat()


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

"""`imaginary.json`, which the chip runs: tensors with the exponents of their scales, and layers in order.

    {"inputs": [tensor], "outputs": {name: tensor},
     "tensors": {name: {"bits": 8, "exponent": -5},
                 parameter: {"bits": 4, "exponent": -3, "shape": [...], "codes": [...]}},
     "layers": [{"name": ..., "op": "conv", "reads": [tensor], "writes": tensor, "relu": true,
                 "weight": parameter, "bias": parameter or null, "stride": [1, 1], "pads": [1, 1, 1, 1]}]}

`op` is "conv", "linear", "add", "flatten" or "relu"; only the first two have parameters. A layer sums in integers,
shifts to the exponent of what it writes, rounding half up, and clips.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from detent.errors import DeployError
from detent.ir import DeployedTensor, Network, Op
from detent.targets.base import Deployment, Format, TensorFacts, Written
from detent.targets.base.content import as_json, parse_json, unreadable
from detent.targets.base.format import EVERY_ROLE, Roles
from detent.targets.base.limits import by_name, exponents, integers, on_one_scale
from detent.twin.lowering import chain

__all__ = ["FORMAT", "ImaginaryJson", "read"]

_NAME = "imaginary_json"
_FILE = "imaginary.json"


class ImaginaryJson(Format):
    name = _NAME
    files: Mapping[str, Roles | None] = {_FILE: EVERY_ROLE}
    weights = _FILE

    def write(self, deployment: Deployment) -> Written:
        graph = deployment.graph
        stored = {name: codes for name, codes in graph.constants.items() if name in graph.coded}
        tensors = {name: _entry(tensor) for name, tensor in by_name(deployment, _NAME).items()}
        for tensor in deployment.parameters:
            codes = stored[tensor.tensor]
            tensors[tensor.tensor] = _entry(tensor) | {"shape": list(codes.shape), "codes": codes.ravel().tolist()}
        content = {
            "inputs": list(graph.inputs),
            "outputs": {output.name: output.read.tensor for output in graph.outputs},
            "tensors": tensors,
            "layers": list(_layers(graph)),
        }
        return Written({_FILE: as_json(content)})

    def facts(self, file: str, files: Mapping[str, bytes]) -> Iterator[TensorFacts]:
        for name, tensor in read(files[file])["tensors"].items():
            facts = {"bits": tensor["bits"], "scale": 2.0 ** tensor["exponent"]}
            yield TensorFacts(name, facts | ({"numbers": np.array(tensor["codes"])} if "codes" in tensor else {}))


FORMAT = ImaginaryJson()


def read(content: bytes) -> dict[str, Any]:
    """The file as Python objects."""
    held = parse_json(content, _NAME)
    absent = [key for key in ("inputs", "outputs", "tensors", "layers") if key not in held]
    if absent:
        raise unreadable(_NAME, f"it has no {absent[0]!r}")
    return held


def _entry(tensor: DeployedTensor) -> dict[str, Any]:
    on_one_scale(tensor, _NAME)
    return {"bits": integers(tensor, _NAME, signed=True).bits, "exponent": int(exponents(tensor, _NAME))}


def _layers(graph: Network) -> Iterator[dict[str, Any]]:
    """A layer for each operation, with the ReLU that is fused with it."""
    fused: set[str] = set()
    for op in graph.ops:
        if op.outputs[0] in fused:
            continue
        found = chain(graph, op, ("Relu",), most=1)
        fused.update(each.outputs[0] for each in found.ops)
        if found.encoding is None:
            raise _refusal(op, "the chip gives integers only")
        yield {
            "name": op.name,
            **_computed(graph, op),
            "writes": found.output,
            "relu": any(each.type == "Relu" for each in found.ops),
        }


def _computed(graph: Network, op: Op) -> dict[str, Any]:
    data = [read for read in op.inputs if read is not None and read.tensor not in graph.constants]
    if any(read.encoding is None for read in data):
        raise _refusal(op, "the chip takes integers only")
    reads = [read.tensor for read in data]
    match op.type:
        case "Conv" if _is_plain(op):
            window = {"stride": list(op.attributes["strides"]), "pads": list(op.attributes["pads"])}
            return {"op": "conv", "reads": reads, **_parameters(op), **window}
        case "Gemm" if op.attributes == {"transB": 1}:
            return {"op": "linear", "reads": reads, **_parameters(op)}
        case "Add" if len(reads) == 2:
            return {"op": "add", "reads": reads}
        case "Reshape" | "Flatten" if len(graph.shapes[op.outputs[0]]) == 2:
            return {"op": "flatten", "reads": reads}
        case "Relu":
            return {"op": "relu", "reads": reads}
    raise _refusal(op, "the chip has no such layer")


def _is_plain(op: Op) -> bool:
    """Of a convolution: over two axes, without groups or dilation."""
    return op.groups == 1 and len(op.attributes["strides"]) == 2 and set(op.attributes["dilations"]) == {1}


def _parameters(op: Op) -> dict[str, str | None]:
    names = [None if read is None else read.tensor for read in op.inputs[1:]]
    return dict(zip(("weight", "bias"), [*names, None], strict=False))


def _refusal(op: Op, found: str) -> DeployError:
    return DeployError(f"write {op.type} {op.name!r} as {_NAME}", found, "leave it out of the network")

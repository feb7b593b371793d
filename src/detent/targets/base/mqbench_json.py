"""MQBench's `clip_ranges.json`, in the dialect of the backend: what its users' own tools read beside a float network.

tensorrt   {"tensorrt": {"blob_range": {tensor: greatest magnitude}}}
snpe       {"activation_encodings": {tensor: [{"bitwidth", "min", "max"}]}, "param_encodings": {...}}
vitis      {"vitis": {tensor: {"scale"}}}
ppl_w8a16  {"ppl": {tensor: {"step", "zero_point", "min", "max", "bit", "type"}}}
ppl_cuda   lines `tensor: greatest magnitude`, in spite of the name
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from detent.errors import DeployError
from detent.targets import openppl as ppl_json
from detent.targets import tensorrt as tensorrt_ranges
from detent.targets.base.content import as_json, parse_json, unreadable
from detent.targets.base.float_network import FLOAT_MODEL, FloatNetwork, ParameterFormat
from detent.targets.base.format import Roles, TensorFacts, Written
from detent.targets.base.limits import integers, on_one_scale
from detent.targets.qualcomm import encodings as qualcomm_encodings

__all__ = ["FORMAT", "MqbenchJsonFormat", "read_clip_ranges"]

_NAME = "mqbench_json"
_FILE = "clip_ranges.json"
_READ_ELSEWHERE: Mapping[str, Callable[[bytes], Iterator[TensorFacts]]] = {
    "activation_encodings": qualcomm_encodings.range_facts,
    "ppl": ppl_json.tensor_facts,
    "tensorrt": tensorrt_ranges.range_facts,
}
"""By the first key of the dialect."""


class MqbenchJsonFormat(ParameterFormat):
    name = _NAME
    files: Mapping[str, Roles | None] = {_FILE: ("activation",), FLOAT_MODEL: ()}

    def write_parameters(self, network: FloatNetwork) -> Written:
        backend = network.deployment.backend.name
        dialect = _DIALECTS.get(backend)
        if dialect is None:
            raise DeployError(
                f"write {_NAME} for backend {backend!r}",
                f"MQBench has such a file for {', '.join(_DIALECTS)}",
                "deploy for one of them",
            )
        return Written({_FILE: dialect(network)})

    def parameter_facts(self, content: bytes) -> Iterator[TensorFacts]:
        if not content.lstrip().startswith(b"{"):
            yield from (TensorFacts(name, {"greatest": most}) for name, most in read_clip_ranges(content).items())
            return
        held = parse_json(content, _NAME)
        elsewhere = next((read for dialect, read in _READ_ELSEWHERE.items() if dialect in held), None)
        if elsewhere is not None:
            yield from elsewhere(content)
        else:
            yield from (TensorFacts(name, {"scale": scale}) for name, scale in read_clip_ranges(content).items())


FORMAT = MqbenchJsonFormat()


def read_clip_ranges(content: bytes) -> dict[str, Any]:
    """Read the dialects that have no reader elsewhere: tensor to scale for vitis, to magnitude for ppl_cuda."""
    if not content.lstrip().startswith(b"{"):
        lines = [line.rpartition(": ") for line in content.decode().splitlines()]
        try:
            return {name: float(value) for name, _, value in lines}
        except ValueError as error:
            raise unreadable(_NAME, str(error)) from None
    held = parse_json(content, _NAME)
    if "vitis" not in held:
        raise unreadable(_NAME, f"its dialect is {', '.join(held)}, which has a reader of its own")
    return {name: entry["scale"] for name, entry in held["vitis"].items()}


def _tensorrt(network: FloatNetwork) -> bytes:
    return as_json({"tensorrt": {"blob_range": tensorrt_ranges.dynamic_ranges(network)}})


def _snpe(network: FloatNetwork) -> bytes:
    return as_json(qualcomm_encodings.ranges(network))


def _vitis(network: FloatNetwork) -> bytes:
    tensors = {**network.activations, **network.parameters}
    for tensor in tensors.values():
        on_one_scale(tensor, _NAME)
    return as_json({"vitis": {name: {"scale": float(tensor.scale)} for name, tensor in tensors.items()}})


def _ppl(network: FloatNetwork) -> bytes:
    return as_json(ppl_json.steps(network))


def _ppl_cuda(network: FloatNetwork) -> bytes:
    lines: list[str] = []
    for name, tensor in network.activations.items():
        integers(tensor, _NAME)
        on_one_scale(tensor, _NAME)
        lines.append(f"{name}: {float(np.maximum(-tensor.minimum, tensor.maximum))}\n")
    return "".join(lines).encode()


_DIALECTS: dict[str, Callable[[FloatNetwork], bytes]] = {
    "tensorrt": _tensorrt,
    "snpe": _snpe,
    "vitis": _vitis,
    "ppl_w8a16": _ppl,
    "ppl_cuda": _ppl_cuda,
}

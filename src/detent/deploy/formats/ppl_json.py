"""OpenPPL's quantization files.

CUDA and DSP take a table of tensors and one of operations, as PPQ writes them (for the DSP beside a Caffe model, which
Detent does not make):

    {"quant_info": {tensor: {"bit_width", "per_channel", "sym", "scale", "zero_point", "tensor_min", "tensor_max",
                             "q_min", "q_max", "quant_flag", "hash", "dominator"}},
     "op_info": {operation: {"data_type": "INT8"}}}

16-bit activations have the form of MQBench:

    {"ppl": {tensor: {"step", "zero_point", "min", "max", "bit", "type": "biased"}}}
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from detent.deploy.deployment import DeployedTensor, Deployment
from detent.deploy.formats.content import as_json, parse_json, plain, unreadable
from detent.deploy.formats.limits import integers, no_groups, symmetric
from detent.deploy.formats.network import Network
from detent.errors import DeployError
from detent.numerics import PerTensor

__all__ = ["PplTensor", "PplTensors", "read_ppl", "steps", "write"]

_NAME = "ppl_json"
_FILE = "ppl_quantization.json"

Numbers = float | list[float]
Integers = int | list[int]


@dataclass(frozen=True)
class PplTensor:
    """`real = scale * (code - zero_point)`; lists have an element for each channel."""

    bits: int
    scale: Numbers
    zero_point: Integers
    minimum: Numbers
    maximum: Numbers


@dataclass(frozen=True)
class PplTensors:
    """`integer_ops` are the operations that run on integers; None where the form does not say."""

    tensors: Mapping[str, PplTensor]
    integer_ops: tuple[str, ...] | None = None


def write(deployment: Deployment) -> Mapping[str, bytes]:
    network = Network.of(deployment, _NAME)
    match deployment.backend.name:
        case "ppl_w8a16":
            content = steps(network)
        case "ppl_cuda" | "ppl_dsp":
            content = _tables(network, symmetric_only=deployment.backend.name == "ppl_cuda")
        case other:
            raise DeployError(
                f"write {_NAME} for backend {other!r}",
                "the form is chosen by the backend: ppl_cuda, ppl_dsp or ppl_w8a16",
                "deploy for one of them",
            )
    if deployment.backend.name == "ppl_dsp":
        deployment.notes.append(f"OpenPPL's DSP tools take a Caffe model beside {_FILE}: convert float.onnx to one")
    return {_FILE: as_json(content), **network.file}


def read_ppl(content: bytes) -> PplTensors:
    """Either form."""
    held = parse_json(content, _NAME)
    try:
        if "ppl" in held:
            tensors = {
                name: PplTensor(one["bit"], one["step"], one["zero_point"], one["min"], one["max"])
                for name, one in held["ppl"].items()
            }
            return PplTensors(tensors)
        tensors = {
            name: PplTensor(one["bit_width"], one["scale"], one["zero_point"], one["tensor_min"], one["tensor_max"])
            for name, one in held["quant_info"].items()
        }
        return PplTensors(tensors, tuple(held["op_info"]))
    except KeyError as missing:
        raise unreadable(_NAME, f"it lacks {missing}") from None


def steps(network: Network) -> dict[str, Any]:
    """The form of MQBench. Its "bit" is the logarithm of the number of codes there, and so 7 on a narrow grid."""
    entries: dict[str, Any] = {}
    for name, tensor in _tensors(network):
        grid = integers(tensor, _NAME)
        no_groups(tensor, _NAME)
        entries[name] = {
            "step": plain(tensor.scale),
            "zero_point": plain(tensor.zero_point),
            "min": plain(tensor.minimum),
            "max": plain(tensor.maximum),
            "bit": grid.bits,
            "type": "biased",
        }
    return {"ppl": entries}


def _tables(network: Network, *, symmetric_only: bool) -> dict[str, Any]:
    tensors = list(_tensors(network))
    # PPQ's ids come from the clock; only whether two are equal means something.
    ids = {name: index for index, (name, _) in enumerate(tensors, 1)}
    entries: dict[str, Any] = {}
    for name, tensor in tensors:
        grid = integers(tensor, _NAME, bits=(8,))
        no_groups(tensor, _NAME)
        if symmetric_only:
            symmetric(tensor, _NAME)
        entries[name] = {
            "bit_width": grid.bits,
            "per_channel": not isinstance(tensor.scheme.granularity, PerTensor),
            "quant_flag": True,
            "sym": tensor.scheme.symmetric,
            "scale": plain(tensor.scale),
            "zero_point": plain(tensor.zero_point),
            "tensor_min": plain(tensor.minimum),
            "tensor_max": plain(tensor.maximum),
            "q_min": grid.qmin,
            "q_max": grid.qmax,
            "hash": ids[name],
            "dominator": ids.get(tensor.shares or name, ids[name]),
        }
    ops = {node.name: {"data_type": "INT8"} for node in network.nodes if network.reads(node)}
    return {"quant_info": entries, "op_info": ops}


def _tensors(network: Network) -> list[tuple[str, DeployedTensor]]:
    """Biases are left out: their scale is that of input times weight."""
    weights = [(name, tensor) for name, tensor in network.parameters.items() if tensor.role == "weight"]
    return [*network.activations.items(), *weights]

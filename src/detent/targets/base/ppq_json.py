"""PPQ's own table, which it writes beside a float network for ONNX, RKNN and MetaX users:

    {"configs": {operation: {tensor: {"bit_width", "policy", "state", "quant_min", "quant_max", "hash", "dominator"}}},
     "dispatchings": {operation: platform},
     "values": {hash: {"scale", "zero_point"}}}

A tensor is ACTIVATED where it is made (or first read, if it is an input of the network) and OVERLAPPED where it is read
after that; weights are BAKED and biases PASSIVE_BAKED, because the values in `float.onnx` are on their grid already.
PPQ's hashes come from the clock; here they count.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from detent.errors import DeployError
from detent.ir import DeployedTensor, Op
from detent.numerics import PerTensor
from detent.targets.base.content import as_json, parse_json, plain, unreadable
from detent.targets.base.float_network import FLOAT_MODEL, FloatNetwork, ParameterFormat
from detent.targets.base.format import EVERY_ROLE, Roles, TensorFacts, Written
from detent.targets.base.limits import integers, no_groups

__all__ = ["FORMAT", "PPQ_FILE", "PpqConfig", "PpqConfigs", "PpqJsonFormat", "read_ppq"]

_NAME = "ppq_json"
PPQ_FILE = "ppq_config.json"

_PLATFORMS = {
    "academic": "ACADEMIC_INT8",
    "ascend": "ASC_INT8",
    "esp_dl": "ESPDL_INT8",
    "fpga": "FPGA_INT8",
    "metax": "METAX_INT8_C",
    "mnn": "MNN_INT8",
    "ncnn": "NCNN_INT8",
    "nxp": "NXP_INT8",
    "onnxruntime": "ONNXRUNTIME",
    "openvino": "OPENVINO_INT8",
    "ppl_cuda": "PPL_CUDA_INT8",
    "ppl_dsp": "PPL_DSP_INT8",
    "qnn": "QNN_DSP_INT8",
    "rknn": "RKNN_INT8",
    "snpe": "SNPE_INT8",
    "tengine": "TENGINE_INT8",
    "tensorrt": "TRT_INT8",
}
_WITHOUT = (
    "academic_nlp",
    "acl",
    "executorch_xnnpack",
    "litert",
    "native",
    "nnie",
    "ppl_w8a16",
    "stpu",
    "tflite_micro",
    "torch_x86",
    "tvm",
    "vitis",
)
_MORE = ("ACADEMIC_INT4", "ACADEMIC_MIX", "HEXAGON_INT8", "HOST_INT8", "METAX_INT8_T", "PPL_CUDA_INT4", "PPL_CUDA_MIX",
         "PPL_DSP_TI_INT8")  # fmt: skip
_OWN = "EXTENSION"  # what PPQ has for targets of a user's own


@dataclass(frozen=True)
class PpqConfig:
    """One tensor at one operation."""

    bits: int
    properties: frozenset[str]
    state: str
    qmin: int
    qmax: int
    scale: float | list[float]
    zero_point: int | list[int]


@dataclass(frozen=True)
class PpqConfigs:
    configs: Mapping[str, Mapping[str, PpqConfig]]
    platforms: Mapping[str, str]


class PpqJsonFormat(ParameterFormat):
    name = _NAME
    files: Mapping[str, Roles | None] = {PPQ_FILE: EVERY_ROLE, FLOAT_MODEL: ()}

    def write_parameters(self, network: FloatNetwork) -> Written:
        platform = _platform(network.deployment.backend.name)
        tensors = {**network.activations, **network.parameters}
        ids = {name: str(index) for index, name in enumerate(tensors, 1)}
        configs: dict[str, dict[str, Any]] = {}
        seen: set[str] = set()
        for op in network.ops:
            entries = {name: _config(name, tensor, ids, seen) for name, tensor in _tensors(op, network)}
            if entries:
                configs[op.name] = entries
        content = {
            "configs": configs,
            "dispatchings": {op.name: platform if op.name in configs else "FP32" for op in network.ops},
            "values": {
                ids[name]: {"scale": plain(tensor.scale), "zero_point": plain(tensor.zero_point)}
                for name, tensor in tensors.items()
            },
        }
        return Written({PPQ_FILE: as_json(content)})

    def parameter_facts(self, content: bytes) -> Iterator[TensorFacts]:
        for tensors in read_ppq(content).configs.values():
            for name, one in tensors.items():
                codes = {"bits": one.bits, "codes": (one.qmin, one.qmax)}
                yield TensorFacts(name, {"scale": one.scale, "zero_point": one.zero_point, **codes})


FORMAT = PpqJsonFormat()


def read_ppq(content: bytes) -> PpqConfigs:
    """Also of PPQ's own files; a dominated tensor has the scale of the one that dominates it."""
    held = parse_json(content, _NAME)
    try:
        values = held["values"]
        configs = {
            operation: {
                name: PpqConfig(
                    one["bit_width"],
                    frozenset(prop for prop, has in one["policy"].items() if has),
                    one["state"],
                    one["quant_min"],
                    one["quant_max"],
                    **values[str(one["dominator"])],
                )
                for name, one in tensors.items()
            }
            for operation, tensors in held["configs"].items()
        }
        return PpqConfigs(configs, held["dispatchings"])
    except (KeyError, TypeError) as missing:
        raise unreadable(_NAME, f"it lacks {missing}") from None


def _platform(backend: str) -> str:
    if backend in _WITHOUT:
        raise DeployError(
            f"write {_NAME} for backend {backend!r}",
            f"PPQ has platforms for {', '.join(_PLATFORMS)}, and for your own",
            "deploy for one of them",
        )
    named = {name.lower(): name for name in (*_PLATFORMS.values(), *_MORE)}
    return _PLATFORMS.get(backend) or named.get(backend, _OWN)


def _tensors(op: Op, network: FloatNetwork) -> Iterator[tuple[str, DeployedTensor]]:
    for position, tensor in network.reads(op).items():
        yield op.input_names[position], tensor
    for name in op.outputs:
        if name in network.activations:
            yield name, network.activations[name]


def _config(name: str, tensor: DeployedTensor, ids: Mapping[str, str], seen: set[str]) -> dict[str, Any]:
    grid = integers(tensor, _NAME)
    no_groups(tensor, _NAME)
    first = {"activation": "ACTIVATED", "weight": "BAKED", "bias": "PASSIVE_BAKED"}[tensor.role]
    state = "OVERLAPPED" if name in seen else first
    seen.add(name)
    per_tensor = isinstance(tensor.scheme.granularity, PerTensor)
    return {
        "bit_width": grid.bits,
        "policy": {
            "PER_TENSOR": per_tensor,
            "PER_CHANNEL": not per_tensor,
            "LINEAR": True,
            "FLOATING": False,
            "SYMMETRICAL": tensor.scheme.symmetric,
            "ASYMMETRICAL": not tensor.scheme.symmetric,
            "POWER_OF_2": tensor.scheme.scale == "power_of_two",
            "DYNAMIC": False,
        },
        "state": state,
        "quant_min": grid.qmin,
        "quant_max": grid.qmax,
        "hash": ids[name],
        "dominator": ids.get(tensor.shares or name, ids[name]),
    }

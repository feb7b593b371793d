"""OpenPPL: CUDA and DSP, and SenseTime's 16-bit activations.

OpenPPL's quantization files.

CUDA (`ppl_json`) and DSP (`ppl_dsp_json`) take a table of tensors and one of operations, as PPQ writes them (for the
DSP beside a Caffe model, which Detent does not make):

    {"quant_info": {tensor: {"bit_width", "per_channel", "sym", "scale", "zero_point", "tensor_min", "tensor_max",
                             "q_min", "q_max", "quant_flag", "hash", "dominator"}},
     "op_info": {operation: {"data_type": "INT8"}}}

16-bit activations (`ppl_w8a16_json`) have the form of MQBench:

    {"ppl": {tensor: {"step", "zero_point", "min", "max", "bit", "type": "biased"}}}
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from detent.graph import AVERAGE_POOLS, WEIGHTED
from detent.ir import DeployedTensor
from detent.numerics import PerChannel, PerTensor
from detent.planning import FUSED, MOVES, Backend, SupportedSchemes, chains, quantize_io
from detent.targets.base import Target, TensorFacts, Written
from detent.targets.base.content import as_json, parse_json, plain, unreadable
from detent.targets.base.float_network import FLOAT_MODEL, FloatNetwork, ParameterFormat
from detent.targets.base.format import Roles
from detent.targets.base.limits import integers, no_groups, symmetric
from detent.targets.base.ppq_kinds import CUDA_KINDS, DSP_KINDS

__all__ = [
    "CUDA_FORMAT",
    "CUDA_TARGET",
    "DSP_FORMAT",
    "DSP_TARGET",
    "PPL_CUDA",
    "PPL_DSP",
    "PPL_W8A16",
    "W8A16_FORMAT",
    "W8A16_TARGET",
    "PplJsonFormat",
    "PplTensor",
    "PplTensors",
    "read_ppl",
    "steps",
    "tensor_facts",
]

# MQBench has affine numbers here and then writes only the greatest magnitude: the engine is symmetric, as in PPQ.
PPL_CUDA = Backend(
    name="ppl_cuda",
    about="OpenPPL, CUDA",
    weight=SupportedSchemes(granularities=(PerChannel, PerTensor)),
    activation=SupportedSchemes(),
    bias="int32",
    rules=quantize_io(*CUDA_KINDS),
    fusions=(*FUSED, *chains(("conv", "linear"), ("sigmoid", "leaky_relu"), norm=True), *chains(("add",))),
    passthrough=(*MOVES, "resize"),
    quantize_outputs=True,
    files=("onnx", "ppl_json"),
)

CUDA_TARGET = Target(backend=PPL_CUDA, formats={"ppl_json": "detent.targets.openppl:CUDA_FORMAT"})

PPL_DSP = Backend(
    name="ppl_dsp",
    about="OpenPPL, Hexagon DSP",
    weight=SupportedSchemes(signed=(False,), symmetric=(False,)),
    activation=SupportedSchemes(signed=(False,), symmetric=(False,)),
    # PPQ simulates 30 bits of the 32, against underflow of its float32 scales; so with all its other platforms.
    bias="int32",
    rules=quantize_io(*DSP_KINDS),
    fusions=(*FUSED, *chains(("add",))),
    passthrough=(*MOVES, "pad", "resize"),
    quantize_outputs=True,
    files=("onnx", "ppl_dsp_json"),
)

DSP_TARGET = Target(backend=PPL_DSP, formats={"ppl_dsp_json": "detent.targets.openppl:DSP_FORMAT"})

# Known from MQBench only, which leaves the bias float.
PPL_W8A16 = Backend(
    name="ppl_w8a16",
    about="OpenPPL, 8-bit weights and 16-bit activations",
    weight=SupportedSchemes(signed=(False,), symmetric=(False,)),
    activation=SupportedSchemes(bits=(16,), signed=(False,), symmetric=(False,)),
    rules=quantize_io(*WEIGHTED, "add", "mul", *AVERAGE_POOLS, "batchnorm", "prelu", "resize"),
    fusions=(*FUSED, *chains(("add", "mul"))),
    quantize_outputs=True,
    files=("onnx", "ppl_w8a16_json"),
)

W8A16_TARGET = Target(backend=PPL_W8A16, formats={"ppl_w8a16_json": "detent.targets.openppl:W8A16_FORMAT"})


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


class PplJsonFormat(ParameterFormat):
    """`describe` makes the content of the file; `notes` are written whatever it is."""

    files: Mapping[str, Roles | None] = {_FILE: ("activation", "weight"), FLOAT_MODEL: ()}

    def __init__(self, name: str, describe: Callable[[FloatNetwork], Mapping[str, Any]], notes: tuple[str, ...] = ()):
        self.name, self._describe, self._notes = name, describe, notes

    def write_parameters(self, network: FloatNetwork) -> Written:
        return Written({_FILE: as_json(self._describe(network))}, self._notes)

    def parameter_facts(self, content: bytes) -> Iterator[TensorFacts]:
        return tensor_facts(content)


def tensor_facts(content: bytes) -> Iterator[TensorFacts]:
    """The facts of a file in either format."""
    for name, one in read_ppl(content).tensors.items():
        grid = {"scale": one.scale, "zero_point": one.zero_point, "bits": one.bits}
        yield TensorFacts(name, {**grid, "range": (one.minimum, one.maximum)})


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


def steps(network: FloatNetwork) -> dict[str, Any]:
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


def _tables(network: FloatNetwork) -> dict[str, Any]:
    tensors = list(_tensors(network))
    # PPQ's ids come from the clock; only whether two are equal means something.
    ids = {name: index for index, (name, _) in enumerate(tensors, 1)}
    entries: dict[str, Any] = {}
    for name, tensor in tensors:
        grid = integers(tensor, _NAME, bits=(8,))
        no_groups(tensor, _NAME)
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
    ops = {op.name: {"data_type": "INT8"} for op in network.ops if network.reads(op)}
    return {"quant_info": entries, "op_info": ops}


def _tensors(network: FloatNetwork) -> list[tuple[str, DeployedTensor]]:
    """Biases are left out: their scale is that of input times weight."""
    weights = [(name, tensor) for name, tensor in network.parameters.items() if tensor.role == "weight"]
    return [*network.activations.items(), *weights]


def _symmetric_tables(network: FloatNetwork) -> dict[str, Any]:
    for _, tensor in _tensors(network):
        symmetric(tensor, _NAME)
    return _tables(network)


CUDA_FORMAT = PplJsonFormat("ppl_json", _symmetric_tables)
DSP_FORMAT = PplJsonFormat(
    "ppl_dsp_json", _tables, (f"OpenPPL's DSP tools take a Caffe model beside {_FILE}: convert {FLOAT_MODEL} to one",)
)
W8A16_FORMAT = PplJsonFormat("ppl_w8a16_json", steps)

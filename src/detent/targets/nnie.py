"""HiSilicon NNIE.

HiSilicon NNIE: the greatest magnitude of the input of each operation, as MQBench hands it to the mapper.

    {"nnie": {"gfpq_param_dict": {operation: [greatest magnitude of each quantized input]}}}

Numbers are logarithmic, 16 steps to the octave, so that a magnitude says all: it is the scale of a `LogGrid`. The
weights of `float.onnx` are on their grid already.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

from detent.graph import WEIGHTED
from detent.ir import DeployedTensor, Op
from detent.numerics import LogGrid
from detent.planning import Backend, SupportedSchemes, quantize_inputs
from detent.targets.base import Target, TensorFacts, Written
from detent.targets.base.content import as_json, parse_json, unreadable
from detent.targets.base.float_network import FLOAT_MODEL, FloatNetwork, ParameterFormat
from detent.targets.base.format import Roles
from detent.targets.base.limits import on_one_scale, refusal

__all__ = ["FORMAT", "NNIE", "TARGET", "GfpqParameters", "NnieGfpqFormat", "gfpq_entries", "read_gfpq"]

_LOGARITHMS = SupportedSchemes(grids=(LogGrid,), narrow=(False,), scales=("float",))

NNIE = Backend(
    name="nnie",
    about="HiSilicon NNIE, logarithmic numbers",
    weight=_LOGARITHMS,
    activation=_LOGARITHMS,
    # What is in its parameter file. MQBench simulates more (mul, prelu, global pooling), but leaves them out of it.
    rules=quantize_inputs(*WEIGHTED, "add", "maxpool", "avgpool", "resize"),
    passthrough=("reshape", "transpose", "slice", "maxpool"),
    arithmetic="onnx_spec",
    files=("onnx", "nnie_gfpq"),
)

TARGET = Target(backend=NNIE, formats={"nnie_gfpq": "detent.targets.nnie:FORMAT"})


_NAME = "nnie_gfpq"
_FILE = "nnie_gfpq.json"
_GRID = LogGrid(bits=8, steps=16)

_WITHOUT_ENTRY = frozenset(
    ("Flatten", "Relu", "PRelu", "Sigmoid", "Reshape", "Softmax", "Clip", "GlobalAveragePool", "Mul")
)
_UPSAMPLES = frozenset(("Resize", "Upsample"))


@dataclass(frozen=True)
class GfpqParameters:
    magnitudes: Mapping[str, tuple[float, ...]]


class NnieGfpqFormat(ParameterFormat):
    name = _NAME
    files: Mapping[str, Roles | None] = {_FILE: (), FLOAT_MODEL: ()}

    def write_parameters(self, network: FloatNetwork) -> Written:
        for tensor in (*network.activations.values(), *network.parameters.values()):
            _require(tensor)
        entries, grouped = gfpq_entries(
            network.ops, lambda op: [float(t.scale) for t in network.reads(op).values() if t.role == "activation"]
        )
        names = ", ".join(grouped)
        note = f"{_NAME} wants a magnitude for each group, so {names} have none: the mapper finds its own"
        return Written({_FILE: as_json({"nnie": {"gfpq_param_dict": entries}})}, (note,) if grouped else ())

    def parameter_facts(self, content: bytes) -> Iterator[TensorFacts]:
        for op, magnitudes in read_gfpq(content).magnitudes.items():
            yield from (TensorFacts(op, {"scale": one}, place) for place, one in enumerate(magnitudes))


FORMAT = NnieGfpqFormat()


def gfpq_entries(
    ops: Iterable[Op], magnitudes_of: Callable[[Op], list[float]]
) -> tuple[dict[str, list[float]], list[str]]:
    """The magnitudes of each operation that the mapper wants some for, and the names of those it finds its own for."""
    entries: dict[str, list[float]] = {}
    upsamplings, grouped = 0, []
    for op in ops:
        magnitudes = [] if op.type in _WITHOUT_ENTRY else magnitudes_of(op)
        if not magnitudes:
            continue
        if op.type == "Conv" and op.groups != 1:
            grouped.append(op.name)
            continue
        entries[op.name] = magnitudes
        if op.type in _UPSAMPLES:  # the mapper makes two layers of it
            entries[f"{op.name}_permute_{upsamplings}"] = magnitudes
            upsamplings += 1
    return entries, grouped


def read_gfpq(content: bytes) -> GfpqParameters:
    held = parse_json(content, _NAME)
    entries = held.get("nnie", {}).get("gfpq_param_dict")
    if not isinstance(entries, dict):
        raise unreadable(_NAME, "it has no 'nnie' with a 'gfpq_param_dict'")
    return GfpqParameters({name: tuple(values) for name, values in entries.items()})


def _require(tensor: DeployedTensor) -> None:
    if tensor.scheme.grid != _GRID:
        raise refusal(_NAME, tensor, f"NNIE has the numbers of {_GRID}", "quantize it to that grid")
    on_one_scale(tensor, _NAME)

"""The benchmark's hardware settings: what a library asks of numbers, and where its graph has quantization nodes.

| graph | quantized are | settings |
|---|---|---|
| 1 | what convolutions and linear layers take in | academic, acl |
| 2 | as 3, but a convolution that ends in a residual addition is fused with it | tensorrt |
| 3 | what every convolution, linear layer, addition and concatenation takes in and gives | tvm, snpe, fbgemm |

A setting's graph has numbers of any width, because the benchmark compares at 4 bits what these chips have at 8.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

from detent.errors import RecipeError, RegistrationError
from detent.graph import AVERAGE_POOLS, WEIGHTED
from detent.planning import FUSED, MOVES, Backend, chains, quantize_io
from detent.targets.academic import ACADEMIC

__all__ = ["GRAPHS", "GRAPH_2", "GRAPH_3", "BackendParams", "Hardware", "hardware_named", "register_hardware"]

GraphNumber = Literal[1, 2, 3]

GRAPH_3 = replace(
    ACADEMIC,
    name="mqbench_graph_3",
    about="MQBench's benchmark: the whole network on integers of any width",
    rules=quantize_io(*WEIGHTED, "add", "mul", "concat"),
    fusions=(*FUSED, *chains(("add", "mul"))),
    passthrough=(*MOVES, *AVERAGE_POOLS),
)
GRAPH_2 = replace(
    GRAPH_3,
    name="mqbench_graph_2",
    about="MQBench's benchmark: as graph 3, with residual additions fused into the convolution before",
    unquantized_edges=(("conv", "add"),),
)
GRAPHS: dict[int, Backend] = {1: ACADEMIC, 2: GRAPH_2, 3: GRAPH_3}


class BackendParams(NamedTuple):
    """The `backend_params` of the benchmark."""

    ada_sign: bool = False
    symmetry: bool = True
    per_channel: bool = False
    pot_scale: bool = False


@dataclass(frozen=True)
class Hardware:
    params: BackendParams
    graph: GraphNumber = 3


_ACADEMIC = Hardware(BackendParams(ada_sign=True), graph=1)
_HARDWARE: dict[str, Hardware] = {
    "academic": _ACADEMIC,
    "tensorrt": Hardware(BackendParams(per_channel=True), graph=2),
    "snpe": Hardware(BackendParams(symmetry=False)),
    "acl": Hardware(BackendParams(symmetry=False, per_channel=True), graph=1),
    "tvm": Hardware(BackendParams(pot_scale=True)),
    "fbgemm": Hardware(BackendParams(symmetry=False, per_channel=True)),
    "bnfold_ablation": _ACADEMIC,
}


def hardware_named(name: str) -> Hardware:
    """One of the benchmark's, or one that was registered."""
    if name not in _HARDWARE:
        known = f"{', '.join(_HARDWARE)}, or a setting with {', '.join(BackendParams._fields)}"
        raise RecipeError(f"backend: {name!r}", f"allowed are {known}", "use one, or register_hardware your own")
    return _HARDWARE[name]


def register_hardware(
    name: str,
    *,
    ada_sign: bool = False,
    symmetry: bool = True,
    per_channel: bool = False,
    pot_scale: bool = False,
    graph: GraphNumber = 3,
) -> None:
    """A setting of your own, in place of another branch of the solver's if-else; a name is never rebound."""
    made = Hardware(BackendParams(ada_sign, symmetry, per_channel, pot_scale), graph)
    if _HARDWARE.get(name, made) != made:
        raise RegistrationError(f"register hardware {name!r}", "the name is taken", "choose another")
    _HARDWARE[name] = made

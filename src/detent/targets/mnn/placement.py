"""Compares a converted MNN model with its network: which tensors it still has, and what ran on integers."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from detent.ir import Network, Op
from detent.targets.base import Placement
from detent.targets.mnn.layers import BINARY, PRODUCT, MnnUnit
from detent.targets.mnn.scale_propagation import WINDOWS
from detent.targets.mnn.scales import MnnScales

__all__ = ["kept_tensors", "placements"]

_PART = re.compile(r"_raster_\d+$")
"""Behind the name of the operation that a command is a part of."""

_LAYOUT = ("ConvertTensor", "Permute", "Reshape", "Squeeze", "Unsqueeze")
_CASTS = ("FloatToInt8", "Int8ToFloat")
_ON_CODES = "DT_INT8"
_LOADED_SO = "the network was loaded without quantization"


def kept_tensors(graph: Network, converted: Mapping[str, Any]) -> set[str]:
    """Tensors whose values a converted model still has.

    MNN may compute a function before layout changes that came before it in the network, without renaming tensors: a
    tensor then holds the output of a later operation. Tensors between data movement exist only if they are requested.
    """
    between = MnnScales(graph).between_moves
    place = {name: index for index, op in enumerate(graph.ops) for name in _names(op)}
    made = {index: each for each in converted["oplists"] for index in each["outputIndexes"]}
    index_of = {name: index for index, name in enumerate(converted["tensorName"])}
    found = set()
    for number, op in enumerate(graph.ops):
        for name in op.outputs:
            if name in index_of and name not in between and place.get(_computed_by(made, index_of[name]), -1) <= number:
                found.add(name)
    return found


def _computed_by(made: Mapping[int, Mapping[str, Any]], index: int) -> str:
    """The name of the operation that computes a tensor, ignoring layout changes."""
    maker = made[index]
    while maker["type"] in _LAYOUT and maker["inputIndexes"][0] in made:
        maker = made[maker["inputIndexes"][0]]
    return str(maker["name"])


def placements(graph: Network, commands: Iterable[tuple[str, str]], *, as_float: bool) -> list[Placement]:
    """`commands` are names and types, as MNN reports them in a run."""
    ran: dict[str, list[str]] = {}
    for name, kind in commands:
        ran.setdefault(_PART.sub("", name), []).append(kind)
    known = MnnScales(graph)
    units = {op.outputs[0]: unit for unit in known.units for op in unit.ops}
    found = []
    for op in graph.ops:
        kinds = [kind for name in _names(op) for kind in ran.get(name, ()) if not kind.startswith(_CASTS)]
        # Moving numbers to where another command wants them is a part of most.
        own = [kind for kind in kinds if not kind.startswith("Raster")] or kinds
        if not own:
            found.append(Placement(op.name, op.type, "folded"))
        elif all(_ON_CODES in kind for kind in own):
            found.append(Placement(op.name, op.type, "integer"))
        else:
            why = _why_in_float(known, units[op.outputs[0]], op)
            found.append(Placement(op.name, op.type, "float", _LOADED_SO if as_float else why))
    return found


def _why_in_float(known: MnnScales, unit: MnnUnit, op: Op) -> str:
    if op.type in (*BINARY, *WINDOWS) and unit.head.outputs[0] in known.never_on_codes:
        return f"on codes, MNN's {op.type} would give other numbers here than the network does"
    missing = known.missing(unit)
    return f"MNN has no scale for {', '.join(missing)}" if missing else f"MNN has no integer {op.type}"


def _names(op: Op) -> list[str]:
    """The possible names of the operations that MNN creates for one."""
    names = [op.name, op.outputs[0], f"{op.outputs[0]}__matmul_converted", f"{op.outputs[0]}{PRODUCT}"]
    if op.type == "Conv":
        group = op.groups
        names += [f"{op.outputs[0]}__group__{index}" for index in range(group)]
    return list(dict.fromkeys(names))

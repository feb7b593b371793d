"""Sums on nested grids: an addend that is finer than the sum is given the step of the sum.

With power-of-two scales the grid of a coarse tensor is a part of the grid of a finer one. Where all addends but one lie
on the grid of their sum, rounding that one to the grid of the sum at once gives the nearest point to the sum; rounding
it to its own finer grid first, and the sum afterward, rounds twice. Half of a step is then a common value, not a rare
one: under half_up (the DPU) every sum gains half a step of its finer addend on average, and a chain of residual blocks
adds these up. The error of the sum is never larger afterward, number by number, so no data is needed to judge it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping

from torch import fx, nn

from detent.algorithms.common.layers import modules_of, regions_of
from detent.graph import CLIPPING, PASSING, PreparedModel, Region, called_module, kind_of
from detent.numerics import PerTensor
from detent.quantizers import Quantizer

__all__ = ["align_addends"]

_SUMS = ("add", "sub")
_BETWEEN = (*CLIPPING, *PASSING)  # rounding before or after them is the same
_NOTE = "addends with the step of their sum: "


def align_addends(prepared: PreparedModel) -> list[str]:
    """Coarsen the tensors that would be rounded twice; return their names, which the Plan lists in a note."""
    changed: list[str] = []
    for region in regions_of(prepared).values():
        modules = modules_of(region)
        uses = _uses(region, modules)
        for graph in region.graphs.values():
            for node in graph.nodes:
                addend, total = _finer(node, modules, uses)
                if addend is not None and total is not None:
                    addend.initialize(total.qparams())
                    changed.append(addend.name)
    prepared.plan = prepared.plan.with_note(_NOTE, ", ".join(changed))
    return changed


def _uses(region: Region, modules: Mapping[str, nn.Module]) -> Counter[nn.Module]:
    """How often each quantizer is called in the graphs of a region."""
    nodes = (node for graph in region.graphs.values() for node in graph.nodes if node.op == "call_module")
    return Counter(modules[str(node.target)] for node in nodes)


def _finer(
    node: fx.Node, modules: Mapping[str, nn.Module], uses: Mapping[nn.Module, int]
) -> tuple[Quantizer | None, Quantizer | None]:
    """The one addend that is finer than the sum, and the quantizer of the sum; None if there is no such addend."""
    kind = kind_of(node, modules)
    total = _quantizer_behind(node, modules) if kind is not None and kind.name in _SUMS else None
    if total is None:
        return None, None
    addends = [_nested(source, modules) for source in node.all_input_nodes]
    known = [addend for addend in addends if addend is not None]
    finer = [addend for addend in known if _step(addend) < _step(total)]
    if len(known) < 2 or len(known) != len(addends) or len(finer) != 1:
        return None, None
    alone = uses[finer[0]] == 1 and all(len(s.users) == 1 for s in _sources(node, finer[0], modules))
    return (finer[0], total) if alone else (None, None)


def _sources(node: fx.Node, quantizer: Quantizer, modules: Mapping[str, nn.Module]) -> Iterator[fx.Node]:
    return (source for source in node.all_input_nodes if modules.get(str(source.target)) is quantizer)


def _quantizer_behind(node: fx.Node, modules: Mapping[str, nn.Module]) -> Quantizer | None:
    """The quantizer of a sum, with at most an activation function in between."""
    while len(node.users) == 1:
        node = next(iter(node.users))
        found = _nested(node, modules)
        if found is not None:
            return found
        kind = kind_of(node, modules)
        if kind is None or kind.name not in _BETWEEN:
            return None
    return None


def _nested(node: fx.Node, modules: Mapping[str, nn.Module]) -> Quantizer | None:
    """The quantizer of a node, if its grid contains every coarser one: symmetric with a power-of-two scale."""
    part = called_module(node, modules)
    if not isinstance(part, Quantizer):
        return None
    scheme = part.scheme
    plain = scheme.grid.is_uniform and isinstance(scheme.granularity, PerTensor)
    return part if plain and scheme.symmetric and scheme.scale == "power_of_two" else None


def _step(quantizer: Quantizer) -> float:
    return float(quantizer.qparams().scale)

"""Why engine, twin and simulation differ, in sentences for a user, and what to do about it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from detent.cpus import Cpu
from detent.ir import Network, Op, can_saturate
from detent.twin import Step, Twin
from detent.verification.roundoff import rounds
from detent.verification.text_of_cpus import layers
from detent.verification.verdict import Cause, Difference, Verdict

__all__ = ["DEFECTS", "Defect", "causes"]

_PORTABLE = (
    "prepare the float model without naming a CPU: the weights that Detent chooses then do not saturate; "
    "or run this file on a CPU with VNNI"
)


@dataclass(frozen=True)
class Defect:
    """A mistake that versions of an engine make, and Detent does not write around: `at` says of an operation that it is
    one of those."""

    engine: str
    versions: tuple[str, ...]
    what: str
    to_do: str
    at: Callable[[Network, Op], bool]


def _ends_near_zero(graph: Network, op: Op) -> bool:
    grids = [read.encoding for read in op.inputs if read is not None and read.encoding is not None]
    grids += [grid for name in op.outputs for grid in graph.encodings(name) if grid is not None]
    return any(float(np.min(grid.scale)) * (grid.qmax - grid.qmin) < 1e-6 for grid in grids)


def _grouped_sum_of_channels(graph: Network, op: Op) -> bool:
    """A convolution in groups, a sum behind it, and a constant behind that."""
    if op.type != "Conv" or op.groups == 1:
        return False
    sums = [reader for name in op.outputs for reader, _ in graph.readers(name) if reader.type == "Add"]
    behind = [reader for each in sums for name in each.outputs for reader, _ in graph.readers(name)]
    constant = graph.constants.keys()
    return any(
        r.type in ("Add", "Mul") and any(i is not None and i.tensor in constant for i in r.inputs) for r in behind
    )


def _few_averages(graph: Network, op: Op) -> bool:
    """An average pool that gives fewer than 16 numbers for one sample."""
    shape = graph.shapes.get(op.outputs[0], ())
    return op.type == "AveragePool" and math.prod(size for size in shape[1:] if isinstance(size, int)) < 16


DEFECTS = (
    Defect(
        "openvino",
        ("2026.4",),
        "averages wrongly on CPUs without AVX-512 where a pool gives fewer than 16 numbers, by up to 189 steps",
        "run more samples at once, or leave that pool float (recipe `exclude`)",
        _few_averages,
    ),
    Defect(
        "openvino",
        ("2026.4",),
        "computes numbers on grids whose whole range is below 1e-6 wrongly, by up to 118 steps",
        "such a layer gives nothing but zeros: take it out, or leave it float (recipe `exclude`)",
        _ends_near_zero,
    ),
    Defect(
        "openvino",
        ("2026.4",),
        "applies constants for channels behind a convolution in groups and a sum wrongly, by up to 198 steps",
        "leave that convolution float (recipe `exclude`)",
        _grouped_sum_of_channels,
    ),
)
"""Of which the arithmetic of OpenVINO tells: the engine's own float execution of the same file does not make them."""


def causes(verdict: Verdict, twin: Twin, computes_as: str | None) -> Iterator[Cause]:
    """The most likely one first. `computes_as` is the kind of CPU whose twin has the engine's numbers, where that of
    the one at hand has not."""
    cpu = twin.arithmetic.cpu
    against_engine = [found for found in verdict.tensors if found.what == "twin vs engine"]
    wrong = [found for found in against_engine if found.impossible]
    if wrong:
        yield _of_engine(twin, str(verdict.engine), wrong, computes_as)
    if verdict.saturating:
        yield _saturation(cpu, verdict.saturating)
    open_ = [found for found in against_engine if found.differing > found.impossible]
    making = _making(twin)
    in_float = [found for found in open_ if _is_float(making.get(found.tensor))]
    on_ties = [found for found in open_ if found not in in_float]
    if in_float:
        yield Cause(
            f"operations in float: {layers(in_float)}",
            "the order in which float32 numbers are added is not fixed, so that a number near the edge between two "
            "codes goes either way",
            "nothing: it is within what is claimed; what follows may differ by more than 1 LSB",
        )
    if on_ties:
        yield Cause(
            f"ties: {layers(on_ties)}",
            "numbers lie halfway between two codes, within the rounding of a float32, and the engine may take either",
            "nothing: it is within what is claimed; what follows may differ by more than 1 LSB",
        )


def _saturation(cpu: Cpu, found: Sequence[Difference]) -> Cause:
    return Cause(
        f"pairs of products saturate on this CPU ({cpu.name}): {layers(found)}",
        "it has no VNNI: it adds two neighboring products of 8-bit numbers in 16 bits, and cuts off what does not fit",
        _PORTABLE,
    )


def _of_engine(twin: Twin, engine: str, wrong: Sequence[Difference], computes_as: str | None) -> Cause:
    """What the twin does not explain, by the first layer that differs: those behind it follow."""
    cpu, arithmetic = twin.arithmetic.cpu, twin.arithmetic
    making, first = _making(twin), wrong[0]
    step = making.get(first.tensor)
    if cpu.name not in type(arithmetic).cpus:
        return Cause(
            f"an unknown CPU ({cpu.name}): {layers(wrong)}",
            f"the twin of {arithmetic.name} knows {', '.join(type(arithmetic).cpus) or 'no kind of CPU'}",
            "verify on one of these; on this CPU rely on the accuracy of the engine",
        )
    if computes_as is not None:
        return Cause(
            f"{engine} computes as on another CPU ({computes_as}): {layers(wrong)}",
            f"the twin took this CPU for {cpu.name}; the twin of {computes_as} has the engine's numbers",
            "check environment variables that choose instructions; weights prepared for any CPU are the same on both",
        )
    ops = step.ops if step is not None else ()
    for defect in DEFECTS:
        if _has(defect, engine) and any(defect.at(twin.graph, op) for op in ops):
            return Cause(f"a known defect of {engine}: {layers(wrong)}", f"it {defect.what}", defect.to_do)
    if cpu.saturates and any(can_saturate(twin.graph, op) for op in ops):
        return _saturation(cpu, wrong)
    if _is_float(step):
        return Cause(
            f"an operation in float: {layers(wrong)}",
            f"{engine} computes it in float, further off than the order of float32 sums explains",
            "leave it float (recipe `exclude`), or report it with this verdict",
        )
    return Cause(
        f"not known: {layers(wrong)}",
        f"{engine} does not compute there what the arithmetic {arithmetic.name} says, from the same inputs",
        "use a version of the engine that Detent is tested with, or report it with this verdict",
    )


def _making(twin: Twin) -> Mapping[str, Step]:
    return {form.tensor: step for step in twin.steps if step.ops for form in step.writes}


def _is_float(step: Step | None) -> bool:
    return step is not None and step.ran_as == "float" and any(rounds(op) for op in step.ops)


def _has(defect: Defect, engine: str) -> bool:
    name, _, version = engine.partition(" ")
    return name == defect.engine and version.startswith(defect.versions)

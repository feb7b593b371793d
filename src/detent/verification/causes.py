"""Explains to the user why engine, twin and simulation differ, and what to do."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from detent.cpus import Cpu
from detent.ir import can_saturate
from detent.ir.roundoff import rounds
from detent.targets.base import Defect
from detent.targets.engines import ENGINES
from detent.traversal import reachable
from detent.twin import Step, Twin
from detent.verification.text_of_cpus import layers
from detent.verification.verdict import Cause, Difference, Verdict

__all__ = ["causes"]

_PORTABLE = (
    "prepare the float model without naming a CPU: the weights that Detent chooses then do not saturate; "
    "or run this file on a CPU with VNNI"
)


def causes(verdict: Verdict, twin: Twin, computes_as: str | None) -> Iterator[Cause]:
    """The most likely cause first. `computes_as` is the kind of CPU whose twin reproduces the engine, if that of this
    CPU does not."""
    cpu = twin.arithmetic.cpu
    against_engine = [found for found in verdict.tensors if found.what == "twin vs engine"]
    wrong = [found for found in against_engine if found.impossible]
    if wrong:
        yield _of_engine(twin, str(verdict.engine), wrong, computes_as)
    if verdict.saturating:
        yield _saturation(cpu, verdict.saturating)
    open_ = [found for found in against_engine if found.differing > found.impossible]
    making = _making(twin)
    in_float = [found for found in open_ if _is_float(making, found.tensor)]
    on_ties = [found for found in open_ if found not in in_float]
    if in_float:
        yield Cause(
            f"operations in float: {layers(in_float)}",
            "the order of float32 sums is not fixed, so a number near the edge between two codes can go either way",
            "nothing: it is within the guarantee; later tensors may differ by more than 1 LSB",
        )
    if on_ties:
        yield Cause(
            f"ties: {layers(on_ties)}",
            "numbers lie halfway between two codes, within the rounding of a float32, and the engine may take either",
            "nothing: it is within the guarantee; later tensors may differ by more than 1 LSB",
        )


def _saturation(cpu: Cpu, found: Sequence[Difference]) -> Cause:
    return Cause(
        f"pairs of products saturate on this CPU ({cpu.name}): {layers(found)}",
        "it has no VNNI: it adds two neighboring products of 8-bit numbers in 16 bits, and cuts off what does not fit",
        _PORTABLE,
    )


def _of_engine(twin: Twin, engine: str, wrong: Sequence[Difference], computes_as: str | None) -> Cause:
    """Differences that the twin does not explain, by the first layer that differs, because later ones follow from
    it."""
    cpu, arithmetic = twin.arithmetic.cpu, twin.arithmetic
    making, first, known = _making(twin), wrong[0], type(arithmetic).cpus
    step = making.get(first.tensor)
    if known and cpu.name not in known:
        return Cause(
            f"an unknown CPU ({cpu.name}): {layers(wrong)}",
            f"the twin of {arithmetic.name} knows {', '.join(known)}",
            "verify on one of these; on this CPU rely on the accuracy of the engine",
        )
    if computes_as is not None:
        return Cause(
            f"{engine} computes as on another CPU ({computes_as}): {layers(wrong)}",
            f"the twin took this CPU for {cpu.name}; the twin of {computes_as} matches the engine",
            "check environment variables that choose instructions; weights prepared for any CPU are the same on both",
        )
    ops = step.ops if step is not None else ()
    for defect in _known_defects(engine):
        if any(defect.at(twin.graph, op) for op in ops):
            return Cause(f"a known defect of {engine}: {layers(wrong)}", f"it {defect.what}", defect.to_do)
    if cpu.saturates and any(can_saturate(twin.graph, op) for op in ops):
        return _saturation(cpu, wrong)
    if _is_float(making, first.tensor):
        return Cause(
            f"an operation in float: {layers(wrong)}",
            f"{engine} computes it in float, further off than the order of float32 sums explains",
            "quantize it, or leave its output float too (recipe `exclude`), or report it with this verdict",
        )
    return Cause(
        f"not known: {layers(wrong)}",
        f"{engine} does not compute there what the arithmetic {arithmetic.name} says, from the same inputs",
        "use a version of the engine that Detent is tested with, or report it with this verdict",
    )


def _making(twin: Twin) -> Mapping[str, Step]:
    return {operand.tensor: step for step in twin.steps if step.ops for operand in step.writes}


def _is_float(making: Mapping[str, Step], tensor: str) -> bool:
    """Whether a tensor comes from a float operation that rounds, directly or through other float operations."""

    def before(each: str) -> list[str]:
        step = making.get(each)
        reads = () if step is None or step.ran_as != "float" else step.reads
        return [read.tensor for read in reads if read is not None and read.encoding is None]

    steps = (making.get(each) for each in reachable([tensor], before))
    return any(step is not None and step.ran_as == "float" and any(rounds(op) for op in step.ops) for step in steps)


def _known_defects(engine: str) -> list[Defect]:
    """The known defects of an engine in this version, such as "openvino 2026.4.1"."""
    name, _, version = engine.partition(" ")
    return [defect for defect in ENGINES[name].known_defects if version.startswith(defect.versions)]

"""Compares the twin of this CPU with the twins of other kinds of CPU."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from detent import cpus
from detent.cpus import CPUS, Cpu
from detent.errors import UnknownNameError
from detent.targets.arithmetics import ARITHMETICS
from detent.twin import Twin
from detent.verification.differences import Tally, encoding_by_tensor
from detent.verification.verdict import OnCpu, Verdict

__all__ = ["OnCpus", "group_kinds", "on_others", "require_known", "untrue"]

Array = npt.NDArray[Any]
Arrays = Mapping[str, Array]


def require_known(asked: Iterable[str], arithmetic: str) -> None:
    """Refuse a kind of CPU that the arithmetic does not support."""
    known = ARITHMETICS[arithmetic].cpus
    for name in asked:
        if cpus.find(name).name not in known:
            where = f"{', '.join(known)}, not on {name}: {ARITHMETICS[arithmetic].elsewhere}"
            raise UnknownNameError(
                f"predict what {arithmetic} computes on the CPU {name!r}",
                f"its arithmetic is known on {where if known else 'no CPU: it is not that of one'}",
                "ask for one of these" if known else "leave cpus out",
            )


def group_kinds(twin: Twin) -> dict[str, tuple[str, ...]]:
    """One kind of CPU for each group that computes alike, with all kinds of the group. The CPU at hand stands for its
    group."""
    here = twin.arithmetic.cpu
    known = [CPUS[name] for name in type(twin.arithmetic).cpus]
    found: dict[tuple[object, ...], list[str]] = {}
    for cpu in sorted(known, key=lambda cpu: cpu.name != here.name):
        found.setdefault(_asked_of(cpu), []).append(cpu.name)
    return {names[0]: tuple(sorted(names, key=list(CPUS).index)) for names in found.values()}


def on_others(here: Twin, inputs: Arrays) -> tuple[OnCpu, ...]:
    """All known kinds, including this one, on a few samples: one after another, because each twin holds the weights."""
    kinds = group_kinds(here)
    outputs = here.run(inputs) if kinds else {}
    found: list[OnCpu] = []
    for name, alike in kinds.items():
        beside = OnCpus(here, {name: alike})
        beside.add(inputs, outputs)
        found += beside.found
    return tuple(found)


def untrue(verdict: Verdict) -> Iterator[str]:
    """The kinds of CPU for which the manifest claims the same integers and the twin disagrees."""
    claimed = verdict.exact_on or ()
    for row in (*verdict.others, *verdict.predicted):
        names = ", ".join(name for name in row.alike if name in claimed)
        if names and row.saturating:
            worst = max(row.saturating, key=lambda layer: layer.most)
            yield (
                f"{worst.tensor}: the manifest says that the file computes the same integers on {names}: the twin says "
                f"that products saturate there, by up to {worst.most:.3g} {worst.unit}"
            )
        elif names and row.differing and verdict.cpu in claimed:
            yield (
                f"outputs: the manifest says that the file computes the same integers on {names} as on {verdict.cpu}: "
                f"the twin says that {row.differing:,} of {row.elements:,} differ"
            )


def _asked_of(cpu: Cpu) -> tuple[object, ...]:
    """All that arithmetics ask of a CPU: two that answer alike run the same program."""
    return cpu.saturates, cpu.register, cpu.name == "arm64"


class OnCpus:
    """The twins of `kinds` beside `here`, the twin of the CPU at hand.

    Outputs are compared with those of `here`. Which layers saturate is what differs, operation by operation and from
    the same values, from a CPU of the same vector width whose products do not.
    """

    def __init__(self, here: Twin, kinds: Mapping[str, tuple[str, ...]]):
        """`kinds` by name, with all that are taken to be like it."""
        self._here, self._encodings = here, encoding_by_tensor(here.graph)
        self._twins = {name: self._twin(CPUS[name]) for name in kinds}
        self._plain = {name: self._twin(_like(CPUS[name])) for name in kinds if CPUS[name].saturates}
        self._ends = {name: Tally(f"on {name}") for name in kinds}
        self._inside = {name: Tally(f"saturated on {name}") for name in kinds}
        self._right: dict[str, list[bool]] = {name: [] for name in kinds}
        self._alike, self._samples = kinds, 0

    def _twin(self, cpu: Cpu) -> Twin:
        arithmetic = self._here.arithmetic
        return self._here if cpu == arithmetic.cpu else Twin(self._here.graph, type(arithmetic)(cpu))

    def add(self, inputs: Arrays, outputs: Arrays, labels: Array | None = None) -> None:
        """One batch, and what `here` makes of it."""
        self._samples += len(next(iter(inputs.values())))
        for name, twin in self._twins.items():
            found, inside = twin.run_and_show(inputs) if name in self._plain else (twin.run(inputs), {})
            for output in self._here.graph.outputs:
                ours, theirs = outputs[output.name], found[output.name]
                self._ends[name].compare(output.name, ours, theirs, output.read.encoding)
            if name in self._plain:
                self._compare_inside(name, inputs, inside)
            if labels is not None:
                scores = next(iter(found.values())).reshape(len(labels), -1)
                self._right[name] += (scores.argmax(1) == labels.reshape(-1)).tolist()

    def _compare_inside(self, name: str, inputs: Arrays, inside: Arrays) -> None:
        plain = self._plain[name].tensors(inputs, inside)
        for tensor, theirs in inside.items():
            if tensor in plain and plain[tensor].size:
                encoding = self._encodings.get(tensor) if theirs.dtype.kind != "f" else None
                self._inside[name].compare(tensor, plain[tensor], theirs, encoding)

    @property
    def found(self) -> tuple[OnCpu, ...]:
        return tuple(self._of(name) for name in self._twins)

    def _of(self, name: str) -> OnCpu:
        ends, right = self._ends[name].differences, self._right[name]
        worst = max(ends, key=lambda difference: difference.most)
        return OnCpu(
            cpu=name,
            samples=self._samples,
            elements=sum(difference.elements for difference in ends),
            differing=sum(difference.differing for difference in ends),
            most=worst.most,
            unit=worst.unit,
            saturating=tuple(found for found in self._inside[name].differences if not found.equal),
            accuracy=100 * float(np.mean(right)) if right else None,
            alike=self._alike[name],
        )


def _like(cpu: Cpu) -> Cpu:
    """One with registers of that width whose products do not saturate, in any engine."""
    return replace(CPUS["vnni"], register=cpu.register)

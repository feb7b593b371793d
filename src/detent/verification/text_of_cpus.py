"""The part of a verdict about kinds of CPU, as text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from detent.verification.verdict import Difference, OnCpu, Verdict

__all__ = ["layers", "on_cpus"]

_MOST_NAMED = 5


def layers(found: Sequence[Difference]) -> str:
    """The first of them with counts."""
    shown = [
        f"{d.tensor} ({d.differing:,} of {d.elements:,}, at most {d.most:.3g} {d.unit})" for d in found[:_MOST_NAMED]
    ]
    more = [f"{len(found) - _MOST_NAMED} more"] if len(found) > _MOST_NAMED else []
    return ", ".join(shown + more)


def on_cpus(verdict: Verdict) -> Iterator[str]:
    """The CPU at hand, those that agree with it, those that were asked for, and what the manifest says."""
    if verdict.cpu is not None and verdict.others:
        yield f"CPU: {verdict.cpu}; {_others(verdict)}"
    for row in verdict.predicted:
        yield f"  on {row.cpu}: {_predicted(row, verdict)}"
    if verdict.exact_on is not None:
        yield f"exact on: {', '.join(verdict.exact_on) or 'no CPU'} (according to the manifest)"


def _others(verdict: Verdict) -> str:
    if any(found.impossible for found in verdict.tensors if found.what == "twin vs engine"):
        return "what other CPUs compute is not known: the twin does not match the engine here"
    differ = [row for row in verdict.others if row.differing]
    agree = [name for row in verdict.others if not row.differing for name in row.alike if name != verdict.cpu]
    samples = f"by the twin, on {verdict.others[0].samples:,} samples"
    if not differ:
        return f"the same integers on {', '.join(agree) or 'no other known CPU'} ({samples})"
    shown = [f"{'/'.join(row.alike)} in {row.differing:,} of {row.elements:,} outputs" for row in differ]
    saturating = [row for row in differ if row.saturating]
    more = f"; products saturate on {saturating[0].cpu} in {layers(saturating[0].saturating)}" if saturating else ""
    same = f"; the same on {', '.join(agree)}" if agree else ""
    return f"other CPUs differ ({samples}): {', '.join(shown)}{same}{more}"


def _predicted(row: OnCpu, verdict: Verdict) -> str:
    parts = [f"top-1 {row.accuracy:.2f} %"] if row.accuracy is not None else []
    most = f", by at most {row.most:.3g} {row.unit}" if row.differing else ""
    parts.append(f"{row.differing:,} of {row.elements:,} outputs differ from {verdict.cpu}{most}")
    parts.append(f"products saturate in {layers(row.saturating)}" if row.saturating else "no products saturate")
    return "; ".join(parts)

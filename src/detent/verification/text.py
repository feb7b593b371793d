"""A verdict as text: a summary line, a table of what was compared, and notes."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from detent.verification.text_of_cpus import on_cpus

if TYPE_CHECKING:
    from detent.verification.verdict import Difference, Verdict

__all__ = ["sqnr_line", "verdict_line", "verdict_text"]

_MOST_SHOWN = 20
"""Tensors that differ, and operations that ran in float for one reason."""

_SLOWER = ": integers do not pay on this CPU; `detent quantize --prefer speed` leaves float what is faster so"


def verdict_line(verdict: Verdict) -> str:
    """The summary line."""
    if verdict.problems:
        return _found(verdict)
    saturating, unlike = verdict.saturating, verdict.unlike
    if not saturating and not unlike:
        return _found(verdict)
    worst = max(saturating or unlike, key=lambda difference: difference.most)
    count = len(saturating or unlike)
    but = (
        f"{'one operation differs' if count == 1 else f'{count} operations differ'} from the simulation on this target"
    )
    if saturating:
        but = (
            f"products saturate on this CPU ({verdict.cpu}) in {count} layer{'s' * (count != 1)}, not in the simulation"
        )
    return f"{_found(verdict)}; but {but}, by at most {worst.most:.3g} {worst.unit} ({worst.tensor})"


def _found(verdict: Verdict) -> str:
    if verdict.problems:
        more = f" (and {len(verdict.problems) - 1} more)" if len(verdict.problems) > 1 else ""
        return f"FAIL: {verdict.problems[0]}{more}"
    if verdict.engine is None:
        found = (
            "the files contain what was simulated" if verdict.simulated else "the files contain what the manifest says"
        )
        if verdict.unsaid:
            count = len(verdict.unsaid)
            float_there = f"ONNX cannot express the grids of {count} tensors, which are float there"
            found = f"model.onnx is not what was simulated: {float_there}"
        return f"PASS without an engine: {found}; no engine ran, its numbers are predicted ({verdict.arithmetic})"
    against = [d for d in verdict.outputs if d.what == "twin vs engine"]
    elements, differing = sum(d.elements for d in against), sum(d.differing for d in against)
    samples = f"{verdict.samples:,} sample{'s' * (verdict.samples != 1)}"
    if differing == 0:
        return f"PASS: {verdict.engine} computes what was predicted: all {elements:,} outputs of {samples} are equal"
    worst = max(against, key=lambda difference: difference.most)
    return (
        f"PASS: {verdict.engine} computes what was predicted, within the guarantee: "
        f"{differing:,} of {elements:,} outputs of {samples} differ, by at most {worst.most:.3g} {worst.unit}"
    )


def sqnr_line(sqnr: Mapping[str, float]) -> str:
    """One line with the SQNR of each output against the float network."""
    shown = [f"{name} {'equal' if value == math.inf else f'{value:.1f} dB'}" for name, value in sqnr.items()]
    return f"SQNR against the float network, on calibration data: {', '.join(shown)}"


def verdict_text(verdict: Verdict) -> Iterator[str]:
    """The text, line by line."""
    yield verdict.line
    yield ""
    yield from (f"cause: {cause.what}\n  why: {cause.why}\n  what to do: {cause.to_do}" for cause in verdict.causes)
    yield from [""] * bool(verdict.causes)
    if verdict.outputs:
        yield from _table(verdict)
        yield ""
    first = "simulation" if verdict.simulated else "file"
    differs = any(not d.equal for d in verdict.outputs if d.what.startswith(first))
    if verdict.holds and differs and not verdict.unsaid:
        why = "single roundings differ, and later layers spread the difference"
        if verdict.saturating:
            why = "products saturate on this CPU"
        elif verdict.unlike:
            why = "the target computes some operations differently, by more than a rounding"
        yield f"{first} vs twin: {why}; detent.bit_exact(prepared) computes exactly what the twin does"
    yield from _placed(verdict)
    if verdict.accuracy:
        parts = {first: verdict.accuracy.simulation, "twin": verdict.accuracy.twin, "engine": verdict.accuracy.engine}
        shown = [f"{name} {share:.2f} %" for name, share in parts.items() if share is not None]
        yield f"top-1 of {verdict.accuracy.samples:,}: {', '.join(shown)}"
    if verdict.sqnr:
        yield sqnr_line(verdict.sqnr)
    if verdict.speed:
        speed = verdict.speed
        yield (
            f"latency, one thread: {speed.int8_ms:.2f} ms quantized, {speed.float_ms:.2f} ms float, "
            f"ratio {speed.ratio:.2f}{_SLOWER if speed.ratio >= 1 else ''}"
        )
    yield from on_cpus(verdict)
    yield f"twin: the engine's integer arithmetic, emulated ({verdict.arithmetic}); guarantee: {verdict.claim}"
    yield "LSB: one step of a quantized number; op by op: each operation alone, from the same inputs"
    if not verdict.simulated:
        yield "file: model.onnx computed in float, as ONNX defines it; the folder does not contain the simulated model"
    yield from (f"problem: {problem}" for problem in verdict.problems)
    yield from (f"note: {note}" for note in verdict.notes)


def _table(verdict: Verdict) -> Iterator[str]:
    """A row for each output and comparison; inside, one for each tensor that differs, and one for the others."""
    rows: list[tuple[str, ...]] = [("compared", "tensor", "differing", "of", "rate", "largest difference")]
    rows += [_row(difference) for difference in verdict.outputs]
    for what in dict.fromkeys(difference.what for difference in verdict.tensors):
        inside = [difference for difference in verdict.tensors if difference.what == what]
        unequal = [difference for difference in inside if not difference.equal]
        rows += [_row(difference, "op by op: ") for difference in unequal[:_MOST_SHOWN]]
        rows += _rest(what, unequal[_MOST_SHOWN:], "more tensors")
        rows += _rest(what, [difference for difference in inside if difference.equal], "equal tensors")
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for row in rows:
        words = [cell.ljust(width) for cell, width in zip(row[:2], widths[:2], strict=True)]
        numbers = [cell.rjust(width) for cell, width in zip(row[2:], widths[2:], strict=True)]
        yield "  ".join([*words, *numbers]).rstrip()


def _row(difference: Difference, before: str = "") -> tuple[str, ...]:
    counts = (f"{difference.differing:,}", f"{difference.elements:,}")
    if difference.equal:
        return (f"{before}{difference.what}", difference.tensor, *counts, "", "")
    most = f"{difference.most:.3g} {difference.unit}"
    return (f"{before}{difference.what}", difference.tensor, *counts, f"{difference.rate:.2g}", most)


def _rest(what: str, differences: Sequence[Difference], word: str) -> list[tuple[str, ...]]:
    if not differences:
        return []
    differing, elements = (sum(getattr(d, part) for d in differences) for part in ("differing", "elements"))
    return [(f"op by op: {what}", f"({len(differences)} {word})", f"{differing:,}", f"{elements:,}", "", "")]


def _placed(verdict: Verdict) -> Iterator[str]:
    """What ran on integers, and why other operations did not."""
    if not verdict.placements:
        return
    ran = sum(placed["ran_as"] == "integer" for placed in verdict.placements)
    yield f"operations that ran on integers: {ran}; in float: {len(verdict.in_float) or 'none'}"
    reasons: dict[str, list[str]] = {}
    for placed in verdict.placements:
        if placed["ran_as"] == "float":
            reasons.setdefault(placed["why"] or "the engine does not say why", []).append(placed["op"])
    for why, ops in reasons.items():
        more = f" and {len(ops) - _MOST_SHOWN} more" if len(ops) > _MOST_SHOWN else ""
        yield f"  in float: {', '.join(ops[:_MOST_SHOWN])}{more}: {why}"

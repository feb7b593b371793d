"""The leaderboard: cells that differ only in their seed form one row, with mean and spread."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from detent.bench.results import Result
from detent.compat.mqbench import hardware
from detent.errors import ArtifactError, refusing
from detent.files import write_bytes

__all__ = ["ACADEMIC", "Row", "Spread", "rows_of", "write_leaderboard"]

_SEEDLESS = ("network", "algorithm", "target", "bits", "batch_norm", "initialization")
ACADEMIC = hardware.GRAPHS[1].name
GRAPH_TARGETS = {ACADEMIC: 1, **{f"{hardware.__name__}:GRAPH_{number}": number for number in (2, 3)}}
"""The benchmark's graphs with one kind of numbers: what is quantized is all that differs. Its code has these three."""


@dataclass(frozen=True)
class Spread:
    """Mean and sample standard deviation (0 of one value) of `count` values.

    >>> Spread.of([90.0, 92.0]), Spread.of([None])
    (Spread(mean=91.0, deviation=1.4142135623730951, count=2), None)
    """

    mean: float
    deviation: float
    count: int

    @classmethod
    def of(cls, values: Iterable[float | None]) -> Spread | None:
        known = [value for value in values if value is not None]
        return cls(mean(known), stdev(known) if len(known) > 1 else 0.0, len(known)) if known else None

    def __str__(self) -> str:
        return f"{self.mean:.2f} \N{PLUS-MINUS SIGN} {self.deviation:.2f}" if self.count > 1 else f"{self.mean:.2f}"


@dataclass(frozen=True)
class Row:
    """Figures of cells that differ in their seeds alone. `errors` are what failed, or could not be deployed.

    Accuracies are in percent; `verified` are the same samples for simulation, twin and engine. `size` is the share of
    the float parameters' bytes. `cost` is the seconds of calibration and training.
    """

    axes: dict[str, Any]
    seeds: tuple[int, ...]
    exact: Spread | None
    simulated: Spread | None
    verified: dict[str, Spread | None]
    latency: Spread | None
    size: float | None
    cost: Spread | None
    on: str
    holds: bool | None
    errors: tuple[str, ...]

    @property
    def lost(self) -> float | None:
        """Points against the float network, of the means."""
        return None if self.exact is None or self.simulated is None else self.exact.mean - self.simulated.mean

    def to_dict(self) -> dict[str, Any]:
        def plain(spread: Spread | None) -> dict[str, float] | None:
            return None if spread is None else vars(spread).copy()

        return {
            **self.axes,
            "seeds": list(self.seeds),
            "float": plain(self.exact),
            "simulated": plain(self.simulated),
            "verified": {who: plain(spread) for who, spread in self.verified.items()},
            "latency_ratio": plain(self.latency),
            "size": self.size,
            "seconds": plain(self.cost),
            "engine": self.on,
            "verdict_holds": self.holds,
            "errors": list(self.errors),
        }


def rows_of(results: Iterable[Result]) -> list[Row]:
    """The most accurate first of each network and width; rows without a figure last."""
    groups: dict[str, list[Result]] = {}
    for result in results:
        groups.setdefault(_setting(result), []).append(result)
    rows = [_row(sorted(group, key=lambda one: int(one.task.cell.axes["seed"]))) for group in groups.values()]
    return sorted(
        rows,
        key=lambda row: (
            row.axes["network"],
            row.axes["bits"],
            float("inf") if row.simulated is None else -row.simulated.mean,
        ),
    )


def _setting(result: Result) -> str:
    """Everything a result was computed with except the seed: results with different budgets are never in one row."""
    cell = result.task.cell
    config = json.loads(json.dumps(dict(cell.config)))
    config.pop("name", None)
    config["train"].pop("seed", None)
    config["model"].pop("pretrained", None)
    config["data"].pop("folder", None)
    held = [config, dict(cell.measure), dict(result.task.hashes), [cell.axes[axis] for axis in _SEEDLESS]]
    return json.dumps(held, sort_keys=True)


def _row(group: Sequence[Result]) -> Row:
    good = [result.figures for result in group if result.error is None]
    deployed = [figures["deployed"] for figures in good if figures.get("deployed")]
    errors = [result.error.splitlines()[-1] for result in group if result.error is not None]
    errors += [f"not deployed: {figures['not_deployed']}" for figures in good if figures.get("not_deployed")]

    def verified(who: str) -> Spread | None:
        return Spread.of((one["accuracy"] or {}).get(who) for one in deployed)

    sizes = [figures["parameter_bytes"] for figures in good]
    return Row(
        {axis: group[0].task.cell.axes[axis] for axis in _SEEDLESS},
        tuple(int(result.task.cell.axes["seed"]) for result in group),
        Spread.of(figures["accuracy"]["float"] for figures in good),
        Spread.of(figures["accuracy"]["simulated"] for figures in good),
        {who: verified(who) for who in ("simulated", "twin", "engine")},
        Spread.of(one["latency_ratio"] for one in deployed),
        sizes[0]["quantized"] / sizes[0]["float"] if sizes else None,
        Spread.of(figures["seconds"]["quantize"] for figures in good),
        next((one["engine"] for one in deployed if one["engine"]), "") or "",
        all(one["holds"] for one in deployed) if deployed else None,
        tuple(dict.fromkeys(errors)),
    )


def academic_against_hardware(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """For each network, width and algorithm: its accuracy by target, where `academic` and another are there.

    Of a target that was run with several batch-norm strategies, the one that most algorithms have counts. The graphs
    of the benchmark are no hardware: see `graphs`.
    """
    plain = [row for row in rows if row.simulated is not None and row.axes["initialization"] is None]
    plain = [row for row in plain if row.axes["target"] not in GRAPH_TARGETS or row.axes["target"] == ACADEMIC]
    places: dict[tuple[str, ...], list[Row]] = {}
    for row in plain:
        places.setdefault(tuple(row.axes[axis] for axis in ("network", "bits", "target")), []).append(row)
    found: dict[tuple[str, ...], dict[str, float]] = {}
    for (network, bits, target), held in places.items():
        counts = Counter(row.axes["batch_norm"] for row in held)
        usual = max(counts, key=lambda strategy: (counts[strategy], strategy is None))
        for row in held:
            if row.axes["batch_norm"] == usual and row.simulated is not None:
                found.setdefault((network, bits, row.axes["algorithm"]), {})[target] = row.simulated.mean
    return [
        {"network": network, "bits": bits, "algorithm": algorithm, "by_target": by_target}
        for (network, bits, algorithm), by_target in found.items()
        if ACADEMIC in by_target and len(by_target) > 1
    ]


def ablation(rows: Sequence[Row], axis: str) -> list[dict[str, Any]]:
    """Rows that differ in one axis alone, side by side: `batch_norm`, `initialization`, or `graph`, where targets are
    those of `GRAPH_TARGETS` and their graphs are what differs."""
    others = [one for one in _SEEDLESS if one != ("target" if axis == "graph" else axis)]
    found: dict[str, dict[str, Any]] = {}
    for row in rows:
        if row.simulated is None or (axis == "graph" and row.axes["target"] not in GRAPH_TARGETS):
            continue
        where = {one: row.axes[one] for one in others}
        entry = found.setdefault(json.dumps(where), {"target": "", **where, "by": {}})
        value = GRAPH_TARGETS[row.axes["target"]] if axis == "graph" else row.axes[axis]
        entry["by"]["default" if value is None else str(value)] = row.simulated.mean
    return [entry for entry in found.values() if len(entry["by"]) > 1]


def write_leaderboard(results: Sequence[Result], folder: str | Path, *, title: str = "Leaderboard") -> list[Path]:
    """`leaderboard.html`, `leaderboard.md` and `leaderboard.json` in `folder`; their paths."""
    from detent.bench.pages import html_page, markdown_page

    where = Path(folder)
    with refusing(ArtifactError, f"show the results for {where}", "remove files of cells that were changed by hand"):
        rows = rows_of(results)
        pages = {
            "leaderboard.html": html_page(rows, results, title),
            "leaderboard.md": markdown_page(rows, results, title),
            "leaderboard.json": json.dumps({"title": title, "rows": [row.to_dict() for row in rows]}, indent=1) + "\n",
        }
    where.mkdir(parents=True, exist_ok=True)
    written = []
    for name, text in pages.items():
        write_bytes(where / name, text.encode("utf-8", "backslashreplace"))
        written.append(where / name)
    return written

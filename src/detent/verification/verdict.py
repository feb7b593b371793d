"""What verifying found: a line a person understands, a table, plain JSON."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

__all__ = ["Accuracy", "Difference", "Speed", "Verdict"]


@dataclass(frozen=True)
class Difference:
    """How two computations of one tensor differ, in steps of its grid (LSB), or relative to its size if it is float."""

    tensor: str
    what: str
    elements: int
    differing: int
    most: float
    unit: str = "LSB"

    @property
    def rate(self) -> float:
        return self.differing / self.elements if self.elements else 0.0

    @property
    def equal(self) -> bool:
        return self.differing == 0

    def __str__(self) -> str:
        if self.equal:
            return f"{self.tensor}: {self.what}: equal in all {self.elements:,}"
        most = f"{self.most:g} {self.unit}"
        return (
            f"{self.tensor}: {self.what}: {self.differing:,} of {self.elements:,} differ ({self.rate:.2g}), most {most}"
        )


@dataclass(frozen=True)
class Accuracy:
    """Top-1 in percent, of each computation, over the labelled samples."""

    samples: int
    simulation: float | None
    twin: float
    engine: float | None


@dataclass(frozen=True)
class Speed:
    """Milliseconds for one run, the same engine, one thread, alternating; medians."""

    int8_ms: float
    float_ms: float

    @property
    def ratio(self) -> float:
        return self.int8_ms / self.float_ms


@dataclass(frozen=True)
class Verdict:
    """`holds` if what was claimed was seen: of an arithmetic proven equal, that engine and twin agree integer for
    integer; of another, that they stay within what it states, operation by operation; and that the files hold what was
    simulated. `problems` are sentences that name the tensor.
    """

    backend: str
    engine: str | None
    arithmetic: str
    claim: str
    samples: int
    outputs: tuple[Difference, ...]
    tensors: tuple[Difference, ...]
    problems: tuple[str, ...]
    placements: tuple[dict[str, str], ...] = ()
    accuracy: Accuracy | None = None
    speed: Speed | None = None
    notes: tuple[str, ...] = field(default_factory=tuple)

    @property
    def holds(self) -> bool:
        return not self.problems

    @property
    def line(self) -> str:
        """The verdict in one sentence."""
        if self.problems:
            more = f" (and {len(self.problems) - 1} more)" if len(self.problems) > 1 else ""
            return f"NOT as claimed: {self.problems[0]}{more}"
        if self.engine is None:
            return f"simulation and files agree; no engine ran: the twin ({self.arithmetic}) stands in for it"
        against = [d for d in self.outputs if d.what == "twin vs engine"]
        elements, differing = sum(d.elements for d in against), sum(d.differing for d in against)
        if differing == 0:
            return (
                f"{self.engine} computes what the twin says: all {elements:,} outputs of {self.samples:,} samples equal"
            )
        worst = max(against, key=lambda difference: difference.most)
        most = f"most {worst.most:.3g} {worst.unit}"
        return f"{self.engine} is {self.claim}: {differing:,} of {elements:,} outputs differ, {most}"

    @property
    def in_float(self) -> tuple[str, ...]:
        """The operations that the engine ran in float."""
        return tuple(placed["op"] for placed in self.placements if placed["ran_as"] == "float")

    def __str__(self) -> str:
        lines = [self.line, ""]
        lines += [f"  {difference}" for difference in self.outputs]
        unequal = [d for d in self.tensors if not d.equal]
        lines.append(
            f"  tensors inside, each from the same inputs: {len(self.tensors)}, of which differ: {len(unequal)}"
        )
        lines += [f"    {difference}" for difference in unequal[:20]]
        if self.placements:
            ran = sum(placed["ran_as"] == "integer" for placed in self.placements)
            lines.append(f"  on integers: {ran} operations; in float: {', '.join(self.in_float) or 'none'}")
        if self.accuracy:
            parts = asdict(self.accuracy)
            shown = [
                f"{name} {parts[name]:.2f} %" for name in ("simulation", "twin", "engine") if parts[name] is not None
            ]
            lines.append(f"  top-1 of {self.accuracy.samples:,}: {', '.join(shown)}")
        if self.speed:
            speed = self.speed
            lines.append(f"  latency: {speed.int8_ms:.2f} ms, float {speed.float_ms:.2f} ms, ratio {speed.ratio:.2f}")
        lines += [f"  problem: {problem}" for problem in self.problems]
        lines += [f"  note: {note}" for note in self.notes]
        return "\n".join(lines)

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON types only."""
        found = asdict(self)
        return {"verdict": self.line, "holds": self.holds, **found}

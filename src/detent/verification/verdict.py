"""The result of verification: a readable line, a table, plain JSON."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from detent.markup import notebook, table, tag
from detent.verification.text import verdict_line, verdict_text

__all__ = ["Accuracy", "Cause", "Difference", "OnCpu", "Speed", "Verdict"]


@dataclass(frozen=True)
class Difference:
    """How two computations of one tensor differ, in steps of its grid (LSB), or relative to its size if it is float.

    Of those `differing`, `impossible` are what no order of float32 sums gives: all of them where equality is claimed
    (`must_equal`), codes more than 1 apart between simulation and twin, which round differently. Of float tensors no
    others are counted when operations are compared one by one.
    """

    tensor: str
    what: str
    elements: int
    differing: int
    most: float
    unit: str = "LSB"
    impossible: int = 0
    must_equal: bool = False

    @property
    def rate(self) -> float:
        return self.differing / self.elements if self.elements else 0.0

    @property
    def equal(self) -> bool:
        return self.differing == 0

    def __str__(self) -> str:
        if self.equal:
            return f"{self.tensor}: {self.what}: equal in all {self.elements:,}"
        most = f"{self.most:.3g} {self.unit}"
        of_them = "" if self.impossible == self.differing else f"{self.impossible:,} of them "
        judged = self.impossible and not self.must_equal
        more = f", {of_them}more than float32 arithmetic explains" if judged else ""
        counts = f"{self.differing:,} of {self.elements:,} differ ({self.rate:.2g})"
        return f"{self.tensor}: {self.what}: {counts}, at most {most}{more}"


@dataclass(frozen=True)
class Accuracy:
    """Top-1 in percent, of each computation, over the labeled samples."""

    samples: int
    simulation: float | None
    twin: float
    engine: float | None


@dataclass(frozen=True)
class Speed:
    """Milliseconds per run on the same engine with one thread, alternating: of the fastest runs, and the medians."""

    int8_ms: float
    float_ms: float
    int8_median_ms: float
    float_median_ms: float

    @property
    def ratio(self) -> float:
        return self.int8_ms / self.float_ms

    @property
    def median_ratio(self) -> float:
        return self.int8_median_ms / self.float_median_ms


@dataclass(frozen=True)
class OnCpu:
    """The twin of one kind of CPU compared with that of this CPU: outputs that differ, layers whose products saturate
    there, and top-1 in percent if there are labels."""

    cpu: str
    samples: int
    elements: int
    differing: int
    most: float
    unit: str
    saturating: tuple[Difference, ...] = ()
    accuracy: float | None = None
    alike: tuple[str, ...] = ()
    """All kinds that run the same program, this one included; only if they were not asked for by name."""


@dataclass(frozen=True)
class Cause:
    """The cause of a difference: what and where, why, and what to do."""

    what: str
    why: str
    to_do: str

    def __str__(self) -> str:
        return f"{self.what}; {self.why}; {self.to_do}"


@dataclass(frozen=True)
class Verdict:
    """`holds` if every claim was confirmed: engine and twin agree integer for integer where the arithmetic is proven
    equal, and elsewhere up to what float32 arithmetic leaves open, operation by operation; and the files hold what was
    simulated, in the same sense. `problems` are sentences that name the tensor.

    `simulated` says that the torch model was there. Without it, `model.onnx` computed in float as ONNX defines it
    stands where the simulation would, and is called "file". `unsaid` are tensors on grids that ONNX cannot say, which
    are float there: the vendor's file has their numbers, if one can.

    `cpu` is the kind of CPU it ran on. `others` are all known kinds, this one included, predicted by the twin on some
    samples; `predicted` are those that were asked for, on all data. `exact_on` are those on which, according to the
    manifest, the file computes the same integers; None if it says nothing. `causes` explain what differs, whether or
    not it is a problem. `sqnr` of each output against the float network, in decibels, is what `detent.quantize` found
    on calibration data.
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
    simulated: bool = True
    unsaid: tuple[str, ...] = ()
    cpu: str | None = None
    others: tuple[OnCpu, ...] = ()
    predicted: tuple[OnCpu, ...] = ()
    exact_on: tuple[str, ...] | None = None
    causes: tuple[Cause, ...] = ()
    sqnr: Mapping[str, float] = field(default_factory=dict)

    def __repr__(self) -> str:
        return f"<Verdict {self.line}; print it to see more>"

    @property
    def holds(self) -> bool:
        return not self.problems

    @property
    def line(self) -> str:
        """The verdict in one sentence."""
        return verdict_line(self)

    @property
    def unlike(self) -> tuple[Difference, ...]:
        """The operations whose results on the target differ from the simulation by more than one rounding."""
        return tuple(d for d in self.tensors if d.what == "simulation vs twin" and d.impossible)

    @property
    def saturating(self) -> tuple[Difference, ...]:
        """The layers whose products saturate on this CPU, according to the twin."""
        return next((row.saturating for row in self.others if row.cpu == self.cpu), ())

    @property
    def in_float(self) -> tuple[str, ...]:
        """The operations that the engine ran in float."""
        return tuple(placed["op"] for placed in self.placements if placed["ran_as"] == "float")

    def __str__(self) -> str:
        return "\n".join(verdict_text(self))

    def _repr_html_(self) -> str:
        head = ("output", "compared", "differing#", "of#", "largest difference#")
        rows = [
            (found.tensor, found.what, f"{found.differing:,}", f"{found.elements:,}", "" if found.equal else most)
            for found in self.outputs
            for most in [f"{found.most:.3g} {found.unit}"]
        ]
        whole = tag("details", tag("summary", "details"), tag("pre", str(self)))
        return notebook(self.line, table(head, rows) if rows else None, whole)

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON types only."""
        found = asdict(self)
        return {"verdict": self.line, "holds": self.holds, **found}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Verdict:
        """The Verdict that `to_dict` described, also after a round trip through JSON."""
        made: dict[str, Any] = {key: tuple(value) if isinstance(value, list) else value for key, value in data.items()}
        for key in ("outputs", "tensors"):
            made[key] = _differences(data[key])
        for key in ("others", "predicted"):
            made[key] = tuple(
                OnCpu(**{**row, "saturating": _differences(row["saturating"]), "alike": tuple(row["alike"])})
                for row in data[key]
            )
        made["causes"] = tuple(Cause(**row) for row in data["causes"])
        made["accuracy"] = None if data["accuracy"] is None else Accuracy(**data["accuracy"])
        made["speed"] = None if data["speed"] is None else Speed(**data["speed"])
        return cls(**{key: value for key, value in made.items() if key not in ("verdict", "holds")})


def _differences(rows: Iterable[Mapping[str, Any]]) -> tuple[Difference, ...]:
    return tuple(Difference(**row) for row in rows)

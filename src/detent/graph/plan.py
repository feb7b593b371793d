"""The Plan: what is quantized and how, and what stays float and why; a table, decided before anything is changed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal

from detent.errors import UnknownNameError
from detent.markup import notebook, table, tag
from detent.numerics import Pairs, Scheme
from detent.quantizers import Role

__all__ = ["FloatTensor", "Plan", "PlanEntry", "PlannedOp", "QuantizedTensor"]

_HEAD = ("tensor", "kind", "as", "by", "why")


@dataclass(frozen=True, kw_only=True)
class QuantizedTensor:
    """One tensor that is quantized.

    `tensor` is the name of a weight (`conv1.weight`) or of the operation or input that gives an activation
    (`layer1.0_relu`). `users` are the operations that get the quantized value; empty means all of them.
    `shares` names the tensor whose quantizer this one uses. `pairs`, of a weight, is which of its codes are kept from
    saturating on CPUs that multiply and add them in pairs, and `widened` by how much calibrating has enlarged its
    scales for that, on average.
    """

    tensor: str
    region: str
    node: str
    role: Role
    kind: str
    scheme: Scheme
    quantizer: str
    observer: str
    why: str
    quantizer_options: Mapping[str, Any] = field(default_factory=dict, hash=False)
    observer_options: Mapping[str, Any] = field(default_factory=dict, hash=False)
    users: tuple[str, ...] = ()
    shares: str | None = None
    pairs: Pairs | None = None
    widened: float | None = None


@dataclass(frozen=True, kw_only=True)
class FloatTensor:
    """One tensor that stays float, and why."""

    tensor: str
    kind: str
    reason: str


PlanEntry = QuantizedTensor | FloatTensor
"""What a Plan says of one tensor."""


@dataclass(frozen=True, kw_only=True)
class PlannedOp:
    """One operation: on grids ("quantized"), on real numbers ("float", and why), on whole numbers that say sizes
    ("shape") or on others ("integer"). `op` and `kind` are the name and type of the node, where it is one of a file."""

    op: str
    kind: str
    runs: Literal["quantized", "float", "shape", "integer"]
    why: str = ""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What a backend and a recipe decide: for every tensor its scheme and method, or why it is float. Prints as a
    table.

    `ops` is the same by operation; `dispatch` prints it. `ranges` are tensors that stay float here but are measured,
    for retargeting to targets that quantize them.
    """

    backend: str
    recipe: str
    entries: tuple[PlanEntry, ...]
    notes: tuple[str, ...] = ()
    ops: tuple[PlannedOp, ...] = ()
    ranges: tuple[QuantizedTensor, ...] = ()

    def __repr__(self) -> str:
        counts = f"{len(self.quantized)} tensors quantized, {len(self.kept_float)} in float"
        return f"<Plan for {self.backend} / {self.recipe}: {counts}; print it to see the table>"

    @property
    def quantized(self) -> tuple[QuantizedTensor, ...]:
        return tuple(entry for entry in self.entries if isinstance(entry, QuantizedTensor))

    @property
    def kept_float(self) -> tuple[FloatTensor, ...]:
        return tuple(entry for entry in self.entries if isinstance(entry, FloatTensor))

    def __getitem__(self, tensor: str) -> PlanEntry:
        for entry in self.entries:
            if entry.tensor == tensor:
                return entry
        raise UnknownNameError(f"tensor {tensor!r} of the plan", "it has no such tensor", "print the plan")

    def __iter__(self) -> Iterator[PlanEntry]:
        return iter(self.entries)

    def __len__(self) -> int:
        return len(self.entries)

    def with_note(self, beginning: str, rest: str = "") -> Plan:
        """This plan with a note in place of the one that begins the same; without `rest` there is none."""
        notes = tuple(note for note in self.notes if not note.startswith(beginning))
        return replace(self, notes=(*notes, beginning + rest) if rest else notes)

    def _rows(self) -> Iterator[tuple[str, str, str, str, str]]:
        """The rows of the table, in the columns of `_HEAD`."""
        for entry in self.entries:
            if isinstance(entry, FloatTensor):
                yield entry.tensor, entry.kind, "float", "", entry.reason
                continue
            by = entry.quantizer if entry.quantizer == "derived" else f"{entry.quantizer} < {entry.observer}"
            why = entry.why
            if entry.shares:
                by, why = f"= {entry.shares}", entry.why
            if entry.pairs:
                step = "" if entry.widened is None else f", steps x{entry.widened:.2f}"
                why += f"; pairs add up to 128 at most{step}"
            if entry.users:
                why += f" (for {', '.join(entry.users)})"
            yield entry.tensor, entry.kind, str(entry.scheme), by, why

    def __str__(self) -> str:
        rows = [_HEAD, *self._rows()]
        widths = [max(len(row[column]) for row in rows) for column in range(4)]
        lines = [f"{self.backend} / {self.recipe}"]
        for row in rows:
            cells = [cell.ljust(width) for cell, width in zip(row[:4], widths, strict=True)]
            lines.append("  ".join([*cells, row[4]]).rstrip())
        lines.extend(f"note: {note}" for note in self.notes)
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        notes = tag("ul", *(tag("li", note) for note in self.notes)) if self.notes else None
        return notebook(f"{self.backend} / {self.recipe}", table(_HEAD, self._rows()), notes)

    def dispatch(self) -> str:
        """A table of the operations and how each runs, with totals."""
        rows = [("operation", "kind", "runs", "why"), *((op.op, op.kind, op.runs, op.why) for op in self.ops)]
        widths = [max(len(row[column]) for row in rows) for column in range(3)]
        lines = []
        for row in rows:
            cells = [cell.ljust(width) for cell, width in zip(row[:3], widths, strict=True)]
            lines.append("  ".join([*cells, row[3]]).rstrip())
        counts = Counter(op.runs for op in self.ops)
        lines.append("operations: " + ", ".join(f"{count} {runs}" for runs, count in counts.items()))
        return "\n".join(lines)

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON types only."""
        rows: list[dict[str, Any]] = []
        for entry in self.entries:
            if isinstance(entry, FloatTensor):
                rows.append({"tensor": entry.tensor, "kind": entry.kind, "float": entry.reason})
                continue
            rows.append(
                {
                    "tensor": entry.tensor,
                    "kind": entry.kind,
                    "role": entry.role,
                    "scheme": entry.scheme.to_dict(),
                    "quantizer": entry.quantizer,
                    "quantizer options": dict(entry.quantizer_options),
                    "observer": entry.observer,
                    "observer options": dict(entry.observer_options),
                    "users": list(entry.users),
                    "shares": entry.shares,
                    "pairs": None if entry.pairs is None else asdict(entry.pairs),
                    "widened": entry.widened,
                    "why": entry.why,
                }
            )
        ops = [{"op": op.op, "kind": op.kind, "runs": op.runs, "why": op.why} for op in self.ops]
        head = {"backend": self.backend, "recipe": self.recipe}
        return {**head, "tensors": rows, "operations": ops, "notes": list(self.notes)}

"""What is to be quantized, how, and why not: the decision, as a table, before anything is done."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from detent.errors import UnknownNameError
from detent.numerics import Scheme
from detent.quantizers import Role

__all__ = ["FloatTensor", "Plan", "QuantizedTensor"]


@dataclass(frozen=True, kw_only=True)
class QuantizedTensor:
    """One tensor that is quantized.

    `tensor` is the name of a weight (`conv1.weight`) or of the operation or input that gives an activation
    (`layer1.0_relu`). `users` are the operations that get the quantized value; empty means all of them.
    `shares` names the tensor whose quantizer this one uses.
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


@dataclass(frozen=True, kw_only=True)
class FloatTensor:
    """One tensor that stays float, and the reason."""

    tensor: str
    kind: str
    reason: str


@dataclass(frozen=True, kw_only=True)
class Plan:
    """For a backend and a recipe: every tensor's scheme and method, or why it is float. Prints as a table."""

    backend: str
    recipe: str
    entries: tuple[QuantizedTensor | FloatTensor, ...]
    notes: tuple[str, ...] = ()

    @property
    def quantized(self) -> tuple[QuantizedTensor, ...]:
        return tuple(entry for entry in self.entries if isinstance(entry, QuantizedTensor))

    @property
    def kept_float(self) -> tuple[FloatTensor, ...]:
        return tuple(entry for entry in self.entries if isinstance(entry, FloatTensor))

    def __getitem__(self, tensor: str) -> QuantizedTensor | FloatTensor:
        for entry in self.entries:
            if entry.tensor == tensor:
                return entry
        raise UnknownNameError(f"tensor {tensor!r} of the plan", "it has no such tensor", "print the plan")

    def __iter__(self) -> Iterator[QuantizedTensor | FloatTensor]:
        return iter(self.entries)

    def __len__(self) -> int:
        return len(self.entries)

    def __str__(self) -> str:
        rows = [("tensor", "kind", "as", "by", "why")]
        for entry in self.entries:
            if isinstance(entry, FloatTensor):
                rows.append((entry.tensor, entry.kind, "float", "", entry.reason))
                continue
            by = entry.quantizer if entry.quantizer == "derived" else f"{entry.quantizer} < {entry.observer}"
            why = entry.why
            if entry.shares:
                by, why = f"= {entry.shares}", entry.why
            if entry.users:
                why += f" (for {', '.join(entry.users)})"
            rows.append((entry.tensor, entry.kind, str(entry.scheme), by, why))
        widths = [max(len(row[column]) for row in rows) for column in range(4)]
        lines = [f"{self.backend} / {self.recipe}"]
        for row in rows:
            cells = [cell.ljust(width) for cell, width in zip(row[:4], widths, strict=True)]
            lines.append("  ".join([*cells, row[4]]).rstrip())
        lines.extend(f"note: {note}" for note in self.notes)
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
                    "why": entry.why,
                }
            )
        return {"backend": self.backend, "recipe": self.recipe, "tensors": rows, "notes": list(self.notes)}

"""What a report shows of one artifact: plain values, collected once, from which every page and file is made."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from detent.verification import Verdict

__all__ = ["Curve", "Facts", "Histogram", "Node", "RunsAs", "TensorSummary"]

RunsAs = Literal["integer", "float", "folded"]


@dataclass(frozen=True, kw_only=True)
class Histogram:
    """How often numbers occur, in steps of their grid: `counts` of equal bins from `low` to `high`.

    `below` and `above` are the shares that lie beyond the grid and are clipped; `at_least` and `at_most` the shares of
    codes at its two ends, 0 for an end that stands for zero. `of` says whose numbers they are.
    """

    low: float
    high: float
    counts: tuple[int, ...]
    below: float
    above: float
    at_least: float
    at_most: float
    of: Literal["float values", "stored codes"]


@dataclass(frozen=True, kw_only=True)
class TensorSummary:
    """One quantized tensor: its grid, and what the grid does to it. `scale` and `zero_point` have the least and the
    greatest where there are several (`channels`). `sqnr` compares it with the same numbers before they were rounded."""

    name: str
    role: Literal["weight", "activation"]
    bits: int
    dtype: str
    qmin: int
    qmax: int
    scale: tuple[float, float]
    zero_point: tuple[int, int]
    channels: int = 1
    shape: tuple[int | str, ...] | None = None
    sqnr: float | None = None
    histogram: Histogram | None = None


@dataclass(frozen=True, kw_only=True)
class Node:
    """One operation of the deployed network.

    `result` is the tensor that the engine makes of it: of several operations that it runs as one, the last one's.
    `sqnr` (decibels) compares that in the deployed network, after all that comes before, with the float network;
    `alone` is the SQNR of the outputs if nothing but the operands of this operation is quantized. `differences` are
    [differing, elements, most, unit] by what was compared.
    """

    name: str
    op: str
    reads: tuple[str, ...]
    outputs: tuple[str, ...]
    result: str
    shape: tuple[int | str, ...] | None
    tensors: tuple[str, ...] = ()
    weight_bits: int | None = None
    activation_bits: int | None = None
    runs: RunsAs | None = None
    why: str = ""
    planned: str = ""
    sqnr: float | None = None
    alone: float | None = None
    differences: Mapping[str, tuple[int, int, float, str]] = field(default_factory=dict)

    @property
    def bits(self) -> int | None:
        """The narrowest of its operands; None if it computes in float."""
        found = [bits for bits in (self.weight_bits, self.activation_bits) if bits is not None]
        return min(found, default=None)

    @property
    def lsb(self) -> float | None:
        """The most that any two computations differ by in steps of the grid; None where it was not compared so."""
        found = [most for _, _, most, unit in self.differences.values() if unit == "LSB"]
        return max(found, default=None)


@dataclass(frozen=True)
class Curve:
    """One logged value of training: points of (step, value)."""

    name: str
    points: tuple[tuple[float, float], ...]


@dataclass(frozen=True, kw_only=True)
class Facts:
    """All facts of a report. `missing` are sentences on what is not shown, and what to pass for it."""

    name: str
    folder: str
    manifest: Mapping[str, Any]
    files: Mapping[str, int]
    size: int
    float_size: int
    parameters: int
    inputs: tuple[str, ...]
    outputs: tuple[tuple[str, str], ...]
    nodes: tuple[Node, ...]
    tensors: Mapping[str, TensorSummary]
    verdict: Verdict | None = None
    float_accuracy: float | None = None
    output_sqnr: Mapping[str, float] = field(default_factory=dict)
    sqnr_of: str = ""
    samples: int = 0
    curves: tuple[Curve, ...] = ()
    missing: tuple[str, ...] = ()

    @property
    def backend(self) -> str:
        return str(self.manifest["backend"])

    @property
    def bits(self) -> str:
        """The widths of weights and activations, as W8 A8."""
        widths = {
            role: sorted({tensor.bits for tensor in self.tensors.values() if tensor.role == role})
            for role in ("weight", "activation")
        }
        return " ".join(f"{role[0].upper()}{'/'.join(map(str, found))}" for role, found in widths.items() if found)

    @property
    def in_float(self) -> tuple[Node, ...]:
        return tuple(node for node in self.nodes if node.runs == "float")

    def to_dict(self) -> dict[str, Any]:
        """The nodes and tensors, as a page needs them."""
        nodes = [{**asdict(node), "bits": node.bits, "lsb": node.lsb} for node in self.nodes]
        return {"nodes": nodes, "tensors": {name: asdict(held) for name, held in self.tensors.items()}}

"""The values of fx nodes during export: a tensor by name, a free size, or a plain Python value."""

from __future__ import annotations

from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

import torch
from torch import Tensor, fx

from detent.graph import DerivedBias
from detent.ir import Encoding
from detent.quantizers import PASS_THROUGH, Quantizer, in_modes

__all__ = ["FREE", "Free", "Ref", "Traced", "trace"]

FREE = "batch"
"""The name of the size that is free."""


@dataclass(frozen=True)
class Ref:
    """A tensor of the network, on the grid of `encoding` if it has one. A size that depends on the batch has a name:
    FREE, `2*batch`, `batch+1`."""

    name: str
    shape: tuple[int | str, ...]
    dtype: torch.dtype
    encoding: Encoding | None = None

    @property
    def ndim(self) -> int:
        return len(self.shape)

    def axis(self, dim: int) -> int:
        return dim % self.ndim


@dataclass(frozen=True)
class Free:
    """A Python integer that depends on the batch: `name` is a 1-element int64 tensor that holds it."""

    name: str


@dataclass(frozen=True)
class Traced:
    """The value of each node for the example, and for an example of twice its `batch` size."""

    first: dict[fx.Node, Any]
    second: dict[fx.Node, Any] | None
    batch: int = 1
    doubled: dict[str, int] = field(default_factory=dict)  # by the name of a free size: its value in the second

    def is_free(self, node: fx.Node) -> bool:
        """Whether an integer depends on the batch."""
        return self.second is not None and self.first[node] != self.second[node]

    def sizes(self, first: Tensor, second: Tensor | None) -> tuple[int | str, ...]:
        """The sizes of a tensor, with a name for each that differs between the two batch sizes."""
        if second is None or first.ndim != second.ndim:
            return tuple(first.shape)
        return tuple(self._size(a, b) for a, b in zip(first.shape, second.shape, strict=True))

    def _size(self, first: int, second: int) -> int | str:
        """Sizes that are not equal have different names: a runtime may reuse memory where the names are the same."""
        if first == second:
            return first
        slope = Fraction(second - first, self.batch)
        offset = first - slope * self.batch
        name = FREE if slope == 1 else f"{slope}*{FREE}"
        if offset:
            name += f"{'+' if offset > 0 else ''}{offset}"
        self.doubled[name] = second
        return name

    @property
    def dynamic(self) -> bool:
        return self.second is not None


class _Keeping(fx.Interpreter):
    """Remembers what every node gave; tensors as empty ones of the same shape, so that nothing big is held."""

    def __init__(self, module: fx.GraphModule):
        super().__init__(module)
        self.kept: dict[fx.Node, Any] = {}

    def run_node(self, n: fx.Node) -> Any:
        value = super().run_node(n)
        self.kept[n] = fx.node.map_aggregate(value, _shell)
        return value


def _shell(value: Any) -> Any:
    return torch.empty(value.shape, dtype=value.dtype, device="meta") if isinstance(value, Tensor) else value


def trace(runner: fx.GraphModule, inputs: tuple[Any, ...]) -> dict[fx.Node, Any]:
    """Run a graph and keep the output of each node, without the numbers, which need not be on grids for that."""
    keeping = _Keeping(runner)
    on_grids = (one for one in runner.modules() if isinstance(one, (Quantizer, DerivedBias)))
    with torch.no_grad(), in_modes(dict.fromkeys(on_grids, PASS_THROUGH)):
        keeping.run(*inputs)
    return keeping.kept

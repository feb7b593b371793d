"""The interface of an arithmetic: how the engine quantizes, which operations it fuses, and how it computes them.

Conventions that every arithmetic and every kernel keeps:

- **Codes are float32 tensors that hold integers**, zero point included (a uint8 tensor holds 0. to 255.). Convolutions,
  pools and moves then run on them as they are, and there is no change of dtype between two steps. Only accumulators
  that may reach 2**24 are float64.
- An **Operand** (`tensor, encoding`) stands for the codes of a tensor on that grid, or with `encoding=None` for its
  real numbers as float32. A step reads and writes operands. The interpreter makes an operand that no step wrote from
  another of the same tensor: codes from floats by `Arithmetic.quantize`, floats from codes by `requantize.dequantize`,
  codes from codes by both. So an arithmetic never inserts a quantization; it only tells what each step reads and
  writes.
- A **Step** is what the engine runs as one kernel. Tensors inside of it do not exist. `ops` are the operations of the
  deployed model it stands for, in their order.

A new arithmetic is one file: a class with `name`, `claim`, `quantize` and `lower`, where `lower` is usually one call of
`lowering.lower(graph, MAKERS)` with a table from ONNX operation types to makers. A maker looks at an operation and what
follows, and answers with a prepared step, or with None where the engine does not run it on integers; the operation then
runs in float. Makers compose `lowering.chain` (what fuses), `accumulate.accumulator` (exact sums of products),
`requantize.*` (from sums to codes) and `float_ops` (everything else).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from torch import Tensor

from detent import cpus
from detent.cpus import Cpu
from detent.ir import Encoding, Network, Op, Operand
from detent.ir.roundoff import Rule

__all__ = ["Arithmetic", "Kernel", "Maker", "Step"]

Kernel = Callable[..., Any]
"""Takes one tensor for each of the step's `reads` (None for an absent optional input), in their order, and gives the
tensor it writes, or a tuple of them. It does not change its arguments."""


@dataclass(frozen=True, eq=False)
class Step:
    """One kernel of the engine, prepared: weights are tensors already, `kernel` only computes.

    `reads` may name constants: they are handed over as tensors like any other. A maker that took the weights into its
    kernel leaves them out. `ran_as` is for the reader of a report; "moved" is an operation whose output values are
    input values, on codes or on real numbers. `off` is not 0 if the kernel was fitted to the engine rather than known:
    by how many steps of its grid the engine's number may be off from the real one before it is rounded; with 1, all
    that is known is that codes are within 1 LSB of the kernel's. `reals` are, by tensor, how a step in float makes real
    numbers of codes, where that is not `requantize.dequantize`.
    """

    ops: tuple[Op, ...]
    reads: tuple[Operand | None, ...]
    writes: tuple[Operand, ...]
    kernel: Kernel = field(repr=False)
    ran_as: Literal["integer", "float", "moved", "quantize"] = "integer"
    off: float = 0.0
    reals: Mapping[str, Callable[[Tensor], Tensor]] = field(default_factory=dict, repr=False)

    def __str__(self) -> str:
        given = ", ".join(_shown(read) for read in self.reads)
        made = ", ".join(_shown(read) for read in self.writes)
        return f"{made} = {'+'.join(op.type for op in self.ops) or 'Convert'}({given}) [{self.ran_as}]"


Maker = Callable[[Network, Op], "Step | None"]
"""Answers with the step that begins with an operation, or None if the engine has no integer kernel for it there."""


class Arithmetic(ABC):
    """How one engine computes on one kind of CPU: by default the one at hand. Stateless: one object serves every
    network."""

    name: ClassVar[str]
    claim: str
    """What is proven against the real engine: "equal" (integer for integer), or how far it was off and how often."""
    cpus: ClassVar[tuple[str, ...]] = cpus.X86
    """The kinds of CPU whose numbers it knows."""
    elsewhere: ClassVar[str] = "nothing was measured there"
    """What was measured of the engine on other kinds: all that is claimed there."""
    from_ends: ClassVar[bool] = False
    """Whether the engine makes real numbers of codes from the end of the grid, `low + code * scale`, so that they are
    rounded as numbers of that size."""
    functions: ClassVar[Mapping[str, Kernel]] = {}
    """Functions of real numbers that the engine computes otherwise than torch, by the type of the operation, which they
    take before its inputs."""
    roundoff: ClassVar[Mapping[str, Rule]] = {}
    """How far two computations of an operation may be apart, by its type, where `rewrite` makes some that no other
    engine has."""
    float_slack: ClassVar[float] = 0.0
    """How far, of the largest number of a tensor, functions that the engine approximates in float may be off beyond
    what float32 arithmetic explains; so may the numbers that codes are made of."""

    def __init__(self, cpu: str | Cpu | None = None):
        self.cpu = self.local_cpu() if cpu is None else cpus.find(cpu)
        if self.cpus and self.cpu.name not in self.cpus:
            self.claim = f"not known on {self.cpu.name}: {self.elsewhere}"

    @classmethod
    def local_cpu(cls) -> Cpu:
        """The kind of CPU that the engine takes this one for: variables of the environment may lessen it."""
        return cpus.here()

    @abstractmethod
    def quantize(self, values: Tensor, encoding: Encoding) -> Tensor:
        """Real numbers (float32) to codes (float32 that hold integers), as the engine does at an edge of the network
        and behind an operation it runs in float. `requantize.quantize` is what ONNX says."""

    @property
    def integer_operators(self) -> frozenset[str]:
        """The ONNX operators that it knows an integer kernel for, on some grids; all others run in float."""
        return frozenset()

    def rewrite(self, graph: Network) -> Network:
        """The network as the engine changes it before it chooses kernels, as far as that changes numbers: for most, as
        it is. `lower` gets the result."""
        return graph

    @abstractmethod
    def lower(self, graph: Network) -> list[Step]:
        """The engine's steps in an executable order; every operation of `graph` is in one of them."""


def _shown(read: Operand | None) -> str:
    if read is None:
        return "-"
    return read.tensor if read.encoding is None else f"{read.tensor}:{read.encoding.dtype}"

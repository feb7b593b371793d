"""What ONNX Runtime's CPU provider makes integer kernels of (qdq_selector_action_transformer.cc).

An operation all of whose inputs come from a DequantizeLinear and whose output goes to one QuantizeLinear, all of the
same 8 bits, with at most one Relu or Clip in between, and that only if the Q does its work anyway (its bound is the
least or greatest code). Everything else runs in float.

On x86 the types are not those of the model: an int8 tensor that *one* operation reads is made uint8 (its codes and zero
point plus 128) and one that several read stays int8, and with int8 a convolution or matrix product runs in float. So in
an int8 network everything around a branch runs in float there.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from torch import Tensor

from detent.ir import Encoding, Network, Op, Operand, Trait, ops_with
from detent.twin import Step
from detent.twin.accumulate import Accumulator, accumulator, bias_codes, matmul_accumulate
from detent.twin.arithmetic import Maker
from detent.twin.float_ops import MOVES
from detent.twin.lowering import Chain, chain, move_step
from detent.twin.requantize import clamp_bounds
from detent.twin.saturating_pairs import lost_in_pairs, saturate_pairs

__all__ = ["MOVERS", "BinaryKernel", "Fusion", "Group", "HeldGrid", "UnaryKernel", "factor"]

_BYTES = ("uint8", "int8")
_CLIPS = ops_with(Trait.CLIPS)


@dataclass(frozen=True)
class HeldGrid:
    """A grid as the runtime holds it: `lift` (0 or 128) is added to codes and zero point."""

    encoding: Encoding
    lift: int

    @property
    def scale(self) -> np.float32:
        scale: np.float32 = np.float32(self.encoding.scale)
        return scale

    @property
    def zero_point(self) -> int:
        """The zero point of the codes in the model, before the lift."""
        return int(self.encoding.zero_point)

    @property
    def lifted_zero_point(self) -> int:
        return self.zero_point + self.lift

    @property
    def dtype(self) -> str:
        return "uint8" if self.lift else self.encoding.dtype

    def settle(self, lifted: Tensor) -> Tensor:
        """Rounded results that include the lifted zero point, as codes of the model (in place)."""
        if self.lift:
            lifted.sub_(self.lift)
        return lifted.clamp_(self.encoding.qmin, self.encoding.qmax)


def integer_bias(op: Op) -> bool:
    """Whether there is no bias, or one of int32, which a factor of the product would change."""
    bias = op.optional(2)
    return bias is None or (bias.encoding is not None and bias.encoding.dtype == "int32" and factor(op) == 1)


def factor(op: Op) -> np.float32:
    """The `alpha` of a Gemm; 1 for other operations."""
    alpha: np.float32 = np.float32(op.attribute("alpha") if op.type == "Gemm" else 1.0)
    return alpha


UnaryKernel = Callable[[Op, HeldGrid, HeldGrid], Callable[[Tensor], Tensor]]
"""From the operation, the input's and the output's grid to a kernel."""

BinaryKernel = Callable[[HeldGrid, HeldGrid, HeldGrid], Callable[[Tensor, Tensor], Tensor]]
"""From both inputs' and the output's grid to a kernel."""


@dataclass(frozen=True)
class Group:
    """One integer kernel: the operations it stands for, what it reads, and its output."""

    chain: Chain
    reads: tuple[HeldGrid, ...]
    output: HeldGrid


@dataclass(frozen=True)
class Fusion:
    """The rules on one kind of processor: `lifts` is x86, `saturates` is x86 without VNNI."""

    lifts: bool
    saturates: bool = False

    def stored(self, graph: Network, read: Operand | None) -> HeldGrid | None:
        """How the runtime holds what is read; None if it is in float, wider, or has several scales."""
        dtype = self.dtype(graph, read)
        if dtype is None or read is None or read.encoding is None or not read.encoding.per_tensor:
            return None
        return HeldGrid(read.encoding, 0 if dtype == read.encoding.dtype else 128)

    def dtype(self, graph: Network, read: Operand | None) -> str | None:
        """The type of the codes that the runtime holds; None if it holds floats, or wider ones."""
        if read is None or read.encoding is None or read.encoding.dtype not in _BYTES:
            return None
        return "uint8" if self.lifts and self._is_lifted(graph, read.tensor) else read.encoding.dtype

    def _is_lifted(self, graph: Network, tensor: str) -> bool:
        if tensor in graph.coded:
            return False
        given = sum(output.read.tensor == tensor for output in graph.outputs)
        return len(graph.readers(tensor)) + given == 1

    def group(self, graph: Network, op: Op, inputs: int | None = None) -> Group | None:
        """`op` up to the Q behind it, if its types are those of an integer kernel; `inputs` says how many of its
        inputs have to be on a grid of one type (all)."""
        found = chain(graph, op, _CLIPS, most=1)
        if found.encoding is None or not found.encoding.full:
            return None  # fewer codes than the type has are a Clip that the Q does not make superfluous
        output = self.stored(graph, found.writes[0])
        reads = [self.stored(graph, read) for read in op.inputs[:inputs]]
        if output is None or any(read is None or read.dtype != output.dtype for read in reads):
            return None
        bounds = clamp_bounds(graph, found.ops[1:], found.encoding)
        if bounds != (found.encoding.qmin, found.encoding.qmax):
            return None
        return Group(found, tuple(read for read in reads if read is not None), output)

    def ends_in_float(self, graph: Network, op: Op) -> bool:
        """Whether the output of `op` is read as float, with no fused Relu or Clip in between."""
        return graph.encodings(op.outputs[0]) == (None,) and len(chain(graph, op, _CLIPS, most=1).ops) == 1

    def takes(self, graph: Network, read: Operand | None) -> bool:
        """Whether convolutions and matrix products have integer kernels for data like this."""
        stored = self.stored(graph, read)
        return stored is not None and (stored.dtype == "uint8" or not self.lifts)

    def sums(self, graph: Network, op: Op) -> Accumulator | None:
        """The integer sums of a weighted operation with a bias of int32, or none: with other types it runs in float."""
        weight = op.inputs[1]
        if weight is None or weight.encoding is None or weight.encoding.dtype not in _BYTES:
            return None
        if not integer_bias(op):
            return None
        plain = replace(op, attributes={**op.attributes, "alpha": 1.0, "transA": 0}) if op.type == "Gemm" else op
        sums = accumulator(graph, plain, bias_codes(graph, op))
        data = self.stored(graph, op.inputs[0])
        if sums is None or data is None:
            return None
        if self.saturates and data.dtype == "uint8" and weight.encoding.dtype == "int8":
            sums = sums if _is_depthwise(op, sums) else saturate_pairs(sums, plain, data.lifted_zero_point)
        if op.type != "Gemm":
            return sums
        scale, total = np.asarray(factor(op) * data.scale * weight.encoding.scale, np.float32), sums.total
        across = bool(op.attribute("transA"))
        return replace(sums, scale=scale, total=lambda x: total(x.T if across else x))

    def products(self, op: Op, a: HeldGrid, b: HeldGrid) -> Callable[[Tensor, Tensor], Tensor]:
        """The integer sums of a product of two activations."""
        across = [op.type == "Gemm" and bool(op.attribute(name)) for name in ("transA", "transB")]
        saturates = self.saturates and (a.dtype, b.dtype) == ("uint8", "int8")

        def sums(x: Tensor, y: Tensor) -> Tensor:
            x, y = (each.T if swap else each for each, swap in zip((x, y), across, strict=True))
            exact = matmul_accumulate(x - a.zero_point, y - b.zero_point, 255, 255)
            return exact - lost_in_pairs(x + a.lift, y) if saturates else exact

        return sums

    def unary(self, make: UnaryKernel) -> Maker:
        """A maker for operations on one activation."""

        def maker(graph: Network, op: Op) -> Step | None:
            group = self.group(graph, op, inputs=1)
            if group is None:
                return None
            kernel = make(op, group.reads[0], group.output)
            return Step(group.chain.ops, op.inputs[:1], group.chain.writes, kernel)

        return maker

    def binary(self, make: BinaryKernel) -> Maker:
        """A maker for operations on two activations."""

        def maker(graph: Network, op: Op) -> Step | None:
            group = self.group(graph, op)
            if group is None:
                return None
            kernel = make(group.reads[0], group.reads[1], group.output)
            return Step(group.chain.ops, op.inputs, group.chain.writes, kernel)

        return maker


def _is_depthwise(op: Op, sums: Accumulator) -> bool:
    """Whether a convolution runs in a kernel for depthwise ones, which adds each product alone: not with weights of
    several zero points."""
    zero_points = np.unique(sums.weight.zero_point)
    outputs, inputs = sums.weights.shape[:2]
    return op.type == "Conv" and inputs == 1 and outputs == op.groups and zero_points.size == 1


# An Identity is a pair of Q and DQ that requantizes.
_MOVED = MOVES - {"Identity"}
MOVERS: dict[str, Maker] = dict.fromkeys(_MOVED, move_step)
"""Where the runtime moves real numbers, not codes, the codes that come out are the same: dequantizing and quantizing on
one grid gives the code back."""

"""AMD's DPU as Vitis AI describes it: integers and shifts, every scale a power of two.

No DPU and no emulator of one is at hand: this is the arithmetic of the quantizer that is made for it, in integers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from detent.errors import DeployError
from detent.ir import Encoding, Network, Op, Operand, Trait, ops_with
from detent.twin import Arithmetic, Step
from detent.twin.accumulate import accumulator
from detent.twin.arithmetic import Kernel, Maker
from detent.twin.float_ops import float_kernel
from detent.twin.lowering import chain, lower, move_step
from detent.twin.requantize import clamp_bounds

__all__ = ["VitisDpu", "pool_factor", "position"]

_LEAKY = 26 / 256
"""The one slope of a leaky ReLU."""

_POOLS: dict[tuple[int, ...], tuple[int, int]] = {
    (3, 3): (7, 6),
    (5, 5): (10, 8),
    (3, 6): (7, 8),
    (6, 3): (7, 8),
    (6, 6): (7, 8),
    (7, 7): (21, 10),
    (14, 14): (21, 12),
}


class VitisDpu(Arithmetic):
    """Sums are exact, at the position of input plus weight, or of the bias where that is finer; they are shifted to the
    position of the output and rounded half up. What enters the network is rounded half away from zero.

    An average over a window whose size is no power of two is a multiplication and a shift, and so is not the mean that
    ONNX says; the same goes for leaky ReLU, whose slope is 26/256.
    """

    name = "vitis_dpu"
    cpus = ()
    claim = "equal to the integer arithmetic of Vitis AI's quantizer; no DPU was available"

    def quantize(self, values: Tensor, encoding: Encoding) -> Tensor:
        return half_up(values.double() / float(encoding.scale)).clamp_(encoding.qmin, encoding.qmax).float()

    @property
    def integer_operators(self) -> frozenset[str]:
        return frozenset(_MAKERS)

    def lower(self, graph: Network) -> list[Step]:
        _check(graph)
        return [*_entries(graph), *lower(graph, _MAKERS)]


def position(encoding: Encoding) -> int:
    """The position of the binary point: `real = code * 2**-position`.

    >>> position(Encoding(np.float32(0.125), np.int64(0), "int8"))
    3
    """
    return 1 - math.frexp(float(encoding.scale))[1]


def half_up(values: Tensor) -> Tensor:
    return (values + 0.5).floor_()


def pool_factor(kernel: Sequence[int]) -> tuple[int, int]:
    """`(factor, shift)`: the average over a window is `sum * factor / 2**shift`.

    >>> pool_factor((3, 3)), pool_factor((2, 2)), pool_factor((1, 9))
    ((7, 6), (1, 2), (57, 9))
    """
    if tuple(kernel) in _POOLS:
        return _POOLS[tuple(kernel)]
    size = math.prod(kernel)
    found = [(round(2**shift / size), shift) for shift in range(math.ceil(math.log2(size * 128)))]
    return min(found, key=lambda pair: abs(pair[0] / 2 ** pair[1] - 1 / size))


def _check(graph: Network) -> None:
    reads = [read for op in graph.ops for read in op.inputs if read is not None]
    for read in (*reads, *(output.read for output in graph.outputs)):
        encoding = read.encoding
        if encoding is None:
            continue
        mantissa = math.frexp(float(encoding.scale))[0] if encoding.per_tensor else 0.0
        if mantissa != 0.5 or not encoding.symmetric:
            raise DeployError(
                f"compute {read.tensor!r} as a DPU",
                "it has a scale that is not a power of two, several scales, or a zero point",
                "deploy for the backend vitis",
            )


def _entries(graph: Network) -> list[Step]:
    """Network inputs, which are rounded like parameters."""
    found = []
    for name in graph.inputs:
        for encoding in graph.encodings(name):
            if encoding is not None and name not in graph.coded:
                found.append(Step((), (Operand(name),), (Operand(name, encoding),), _half_away(encoding), "quantize"))
    return found


def _half_away(encoding: Encoding) -> Kernel:
    def kernel(values: Tensor) -> Tensor:
        scaled = values.double() / float(encoding.scale)
        return torch.copysign((scaled.abs() + 0.5).floor_(), scaled).clamp_(encoding.qmin, encoding.qmax).float()

    return kernel


def _requantized(graph: Network, ops: Sequence[Op], reads: Sequence[Operand], total: Kernel, at: int) -> Step | None:
    """A step that sums exactly, at a position, and then shifts; `ops` end with the ReLU or Clip behind it."""
    output = ops[-1].outputs[0]
    encoding = graph.grid_of(output)
    bounds = (
        None
        if encoding is None
        else clamp_bounds(graph, [op for op in ops if op.type in ops_with(Trait.CLIPS)], encoding)
    )
    if encoding is None or bounds is None:
        return None
    factor = 2.0 ** (position(encoding) - at)

    def kernel(*codes: Tensor) -> Tensor:
        return half_up(total(*codes) * factor).clamp_(*bounds).float()

    return Step(tuple(ops), tuple(reads), (Operand(output, encoding),), kernel)


def _weighted(graph: Network, op: Op) -> Step | None:
    sums = accumulator(graph, op)
    if sums is None:
        return None
    at = position(sums.input) + position(sums.weight)
    bias = op.optional(2)
    if bias is not None and (bias.encoding is None or bias.tensor not in graph.constants):
        return None
    finer, shifted = at, torch.zeros(())
    if bias is not None and bias.encoding is not None:
        finer = max(at, position(bias.encoding))
        codes = torch.from_numpy(np.array(graph.constants[bias.tensor], np.float64)).reshape(sums.channels)
        shifted = codes * 2.0 ** (finer - position(bias.encoding))
    lift = 2.0 ** (finer - at)

    def total(x: Tensor) -> Tensor:
        return sums(x).double() * lift + shifted

    return _requantized(graph, chain(graph, op, ops_with(Trait.CLIPS)).ops, (sums.read,), total, finer)


def _pair(combine: Callable[[Tensor, Tensor], Tensor]) -> Maker:
    """Add aligns the codes to one position first; Mul multiplies them as they are."""

    def make(graph: Network, op: Op) -> Step | None:
        reads = [read for read in op.inputs if read is not None and read.encoding is not None]
        if len(reads) != 2:
            return None
        first, second = (position(read.encoding) for read in reads if read.encoding is not None)
        at = first + second if combine is torch.mul else max(first, second)
        lifts = (1.0, 1.0) if combine is torch.mul else (2.0 ** (at - first), 2.0 ** (at - second))

        def total(a: Tensor, b: Tensor) -> Tensor:
            return combine(a.double() * lifts[0], b.double() * lifts[1])

        return _requantized(graph, chain(graph, op, ops_with(Trait.CLIPS)).ops, reads, total, at)

    return make


def _of_one(graph: Network, op: Op, total: Kernel) -> Step | None:
    """An operation on the codes of its first input, at their position."""
    data = op.inputs[0]
    if data is None or data.encoding is None or any(read is not None and read.encoding for read in op.inputs[1:]):
        return None
    return _requantized(graph, (op,), (data,), total, position(data.encoding))


def _pool(graph: Network, op: Op) -> Step | None:
    pads = op.attribute("pads")
    uneven = any(pads) and not op.attribute("count_include_pad")
    if uneven or op.attribute("ceil_mode") or len(op.attributes["kernel_shape"]) != 2 or pads[:2] != pads[2:]:
        return None  # border windows have another size, and Vitis AI says nothing of them
    kernel, strides = op.attributes["kernel_shape"], op.attribute("strides")
    factor, shift = pool_factor(kernel)

    def total(x: Tensor) -> Tensor:
        return F.avg_pool2d(x.double(), kernel, strides, pads[:2], divisor_override=1) * (factor * 2.0**-shift)

    return _of_one(graph, op, total)


def _global_pool(graph: Network, op: Op) -> Step | None:
    def total(x: Tensor) -> Tensor:
        factor, shift = pool_factor(x.shape[2:])
        return x.double().sum(tuple(range(2, x.ndim)), keepdim=True) * (factor * 2.0**-shift)

    return _of_one(graph, op, total)


def _leaky(graph: Network, op: Op) -> Step | None:
    return _of_one(graph, op, lambda x: torch.where(x < 0, x.double() * _LEAKY, x.double()))


def _clipped(graph: Network, op: Op) -> Step | None:
    return _of_one(graph, op, lambda x: x.double())


def _moved(graph: Network, op: Op) -> Step | None:
    """Data movement on codes; requantizing to another grid is a shift."""
    step = move_step(graph, op)
    data = op.inputs[0]
    if step is not None or data is None or data.encoding is None or len(op.outputs) != 1:
        return step
    encoding = graph.grid_of(op.outputs[0])
    if encoding is None:
        return None
    move, factor = float_kernel(graph, op), 2.0 ** (position(encoding) - position(data.encoding))

    def kernel(x: Tensor, *others: Tensor | None) -> Tensor:
        return half_up(move(x, *others).double() * factor).clamp_(encoding.qmin, encoding.qmax).float()

    return Step((op,), op.inputs, (Operand(op.outputs[0], encoding),), kernel)


def _concat(graph: Network, op: Op) -> Step | None:
    encodings = [read.encoding for read in op.inputs if read is not None and read.encoding is not None]
    output = graph.grid_of(op.outputs[0])
    if len(encodings) != len(op.inputs) or output is None:
        return None
    factors = [2.0 ** (position(output) - position(encoding)) for encoding in encodings]

    def kernel(*parts: Tensor) -> Tensor:
        shifted = [half_up(part.double() * factor) for part, factor in zip(parts, factors, strict=True)]
        return torch.cat(shifted, op.attributes["axis"]).clamp_(output.qmin, output.qmax).float()

    return Step((op,), op.inputs, (Operand(op.outputs[0], output),), kernel)


# An Identity requantizes; the other three Vitis AI says nothing of.
_MOVES = ops_with(Trait.MOVES_VALUES) - {"GatherElements", "Identity", "SpaceToDepth", "Tile"}
_MAKERS: dict[str, Maker] = {
    **dict.fromkeys(ops_with(Trait.WEIGHTED), _weighted),
    **dict.fromkeys(ops_with(Trait.CLIPS), _clipped),
    **dict.fromkeys(_MOVES | {"MaxPool"}, _moved),
    "Add": _pair(torch.add),
    "AveragePool": _pool,
    "Concat": _concat,
    "GlobalAveragePool": _global_pool,
    "LeakyRelu": _leaky,
    "Mul": _pair(torch.mul),
}

"""How the chip computes, for the twin: exact sums, then a shift that rounds half up."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from detent.ir import Encoding, Network, Op, Operand
from detent.twin import Arithmetic, Step
from detent.twin.accumulate import accumulator, bias_codes
from detent.twin.lowering import chain, lower, move_step

__all__ = ["Shifts"]


class Shifts(Arithmetic):
    name = "imaginary"
    cpus = ()
    claim = "equal"

    def quantize(self, values: Tensor, encoding: Encoding) -> Tensor:
        return _half_up(values.double() / float(encoding.scale)).clamp_(encoding.qmin, encoding.qmax).float()

    def lower(self, graph: Network) -> list[Step]:
        return lower(graph, {"Conv": _weighted, "Gemm": _weighted, "Add": _add, "Relu": _relu, "Reshape": move_step})


def _half_up(values: Tensor) -> Tensor:
    return (values + 0.5).floor_()


def _exponent(encoding: Encoding) -> int:
    return math.frexp(float(encoding.scale))[1] - 1


def _weighted(graph: Network, op: Op) -> Step | None:
    sums = accumulator(graph, op, bias_codes(graph, op))
    if sums is None:
        return None
    return _shifted(graph, op, (sums.read,), sums, _exponent(sums.input) + _exponent(sums.weight))


def _add(graph: Network, op: Op) -> Step | None:
    reads = [read for read in op.inputs if read is not None]
    at = [_exponent(read.encoding) for read in reads if read.encoding is not None]
    if len(at) != 2:
        return None
    least = min(at)
    first, second = (2.0 ** (exponent - least) for exponent in at)
    return _shifted(graph, op, reads, lambda a, b: a.double() * first + b.double() * second, least)


def _relu(graph: Network, op: Op) -> Step | None:
    data = op.inputs[0]
    if data is None or data.encoding is None:
        return None
    return _shifted(graph, op, (data,), torch.clone, _exponent(data.encoding))


def _shifted(graph: Network, op: Op, reads: Sequence[Operand], sums: Callable[..., Tensor], at: int) -> Step | None:
    """Sums with the exponent `at`, and the ReLU behind them, on the grid of what is written."""
    found = chain(graph, op, ("Relu",), most=1)
    if found.encoding is None:
        return None
    least = 0 if any(each.type == "Relu" for each in found.ops) else found.encoding.qmin
    greatest, factor = found.encoding.qmax, 2.0 ** (at - _exponent(found.encoding))

    def kernel(*codes: Tensor) -> Tensor:
        return _half_up(sums(*codes).double() * factor).clamp_(least, greatest).float()

    return Step(found.ops, tuple(reads), found.writes, kernel)

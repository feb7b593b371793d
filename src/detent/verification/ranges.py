"""The values that a tensor can have for any order of summation in float32.

Each operation starts from values that both sides had (reset inputs), so that the answer is about that operation alone;
where a value inside was not shown, from what that one can be, through the grid it is put on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from detent.ir import Encoding, Op, Operand
from detent.ir.roundoff import UNIT, ErrorBound, error_bounds, rounds
from detent.traversal import dependencies_first, reachable
from detent.twin import Twin
from detent.twin.float_ops import float_kernel
from detent.twin.requantize import dequantize

__all__ = ["Ranges"]

Array = npt.NDArray[Any]

_TO_GRID = 4 * UNIT
"""A quotient by a scale, or a product with its reciprocal, and a zero point that is added to it, on either side."""


class Ranges:
    """The ranges of one batch: `given` holds the other side's values, as codes if they are integers (see
    `Twin.tensors`)."""

    def __init__(self, twin: Twin, inputs: Mapping[str, Array], given: Mapping[str, Array]):
        self._twin, self._graph = twin, twin.rewritten
        self._given = {**given, **{name: array for name, array in inputs.items() if name not in self._graph.coded}}
        self._coded = {name: array for name, array in inputs.items() if name in self._graph.coded}
        self._made = {name: op for op in self._graph.ops for name in op.outputs if name}
        self._approximated = {
            name for step in twin.steps if step.ran_as == "float" for op in step.ops for name in op.outputs
        }
        self._off = {made.tensor: step.off for step in twin.steps if step.off for made in step.writes}
        self._reals = {made.tensor: step.reals for step in twin.steps for made in step.writes}
        self._found: dict[str, ErrorBound] = {}

    def real(self, tensor: str) -> ErrorBound | None:
        """The real numbers that an operation computes, before quantization; None for an input."""
        if tensor not in self._made:
            return None
        with torch.no_grad():
            return self._computed(tensor)

    def codes(self, tensor: str, encoding: Encoding, off: float = 0.0) -> tuple[Array, Array] | None:
        """The lowest and highest possible code, if the real numbers may additionally be `off` by so many steps; None
        for an input."""
        found = self.real(tensor)
        if found is None:
            return None
        if off:
            return _around(found, encoding, off)
        least, _, greatest = self._rounded(found, encoding)
        return least.numpy(), greatest.numpy()

    def rounds_inside(self, tensor: str) -> bool:
        """Whether a tensor that was not given is quantized between the given tensors and this one."""
        for name in reachable([tensor], lambda one: [read.tensor for read in self._hidden(one)]):
            table = self._stored_rows(name)
            if table is not None and table.encoding in self._graph.encodings(name):
                return True
            if any(read.encoding is not None for read in self._hidden(name)):
                return True
        return False

    def sources(self, tensor: str) -> Iterator[str]:
        """The given tensors from which it is computed."""

        def unknown(name: str) -> list[str]:
            return [read.tensor for read in self._computed_inputs(name) if not self._is_known(read)]

        for name in reachable([tensor], unknown):
            yield from (read.tensor for read in self._computed_inputs(name) if self._is_known(read))

    def _computed_inputs(self, tensor: str) -> list[Operand]:
        """The inputs of the operation that computes a tensor, except constants."""
        reads = self._made[tensor].arguments if tensor in self._made else ()
        return [read for read in reads if read is not None and read.tensor not in self._graph.constants]

    def _stored_rows(self, tensor: str) -> Operand | None:
        """The table from which a tensor's rows are taken, if it is stored as codes."""
        op = self._made.get(tensor)
        table = op.inputs[0] if op is not None and op.type == "Gather" else None
        held = self._graph.is_constant(table) and table.encoding is not None
        return table if held else None

    def _hidden(self, tensor: str) -> list[Operand]:
        """The tensors that it is computed from and that were not given."""
        if self._stored_rows(tensor) is not None:
            return []
        return [read for read in self._computed_inputs(tensor) if not self._is_known(read)]

    def _is_known(self, read: Operand) -> bool:
        known = read.tensor in self._graph.constants or read.tensor in self._graph.inputs
        return known or self._twin.is_given(read, self._given)

    def _computed(self, tensor: str) -> ErrorBound:

        def missing(name: str) -> list[str]:
            reads = [] if name in self._found else self._computed_inputs(name)
            return [read.tensor for read in reads if read.tensor not in self._found and not self._is_known(read)]

        for name in dependencies_first([tensor], missing):
            if name in self._found:
                continue
            op = self._made[name]
            reads = [None if read is None else self._read(read, op) for read in op.arguments]
            arithmetic = self._twin.arithmetic
            own, rule = arithmetic.functions.get(op.type), arithmetic.roundoff.get(op.type)
            kernel = float_kernel(self._graph, op) if own is None else partial(own, op)
            results = error_bounds(op, kernel, reads, rule)
            if arithmetic.float_slack and rule is None and rounds(op) and self._approximated.intersection(op.outputs):
                results = tuple(_wider(each, arithmetic.float_slack) for each in results)
            self._found.update(zip((name for name in op.outputs if name), results, strict=False))
        return self._found[tensor]

    def _read(self, read: Operand, op: Op) -> ErrorBound:
        """An operand as real numbers."""
        encoding = read.encoding
        if read.tensor in self._graph.constants:
            return ErrorBound(self._constant(read))
        if read.tensor in self._coded:
            assert encoding is not None
            return ErrorBound(dequantize(_float(self._coded[read.tensor]), encoding))
        given = self._twin.given_operand(read, self._given)
        if given is None and read.tensor in self._graph.inputs:
            given = torch.from_numpy(np.array(self._given[read.tensor]))
            given = given if encoding is None else self._twin.arithmetic.quantize(given, encoding)
        if encoding is None:
            return self._computed(read.tensor) if given is None else ErrorBound(given)
        real = self._reals.get(op.outputs[0], {}).get(read.tensor, partial(dequantize, encoding=encoding))
        if given is None:
            return self._on_grid(self._computed(read.tensor), encoding, self._off.get(read.tensor, 0.0), real)
        value = real(given)
        return ErrorBound(value, _of_ends(value, encoding) if self._twin.arithmetic.from_ends else None)

    def _on_grid(
        self, found: ErrorBound, encoding: Encoding, off: float, real: Callable[[Tensor], Tensor]
    ) -> ErrorBound:
        """`off`: by how many steps what a kernel rounds may be off, if it was fitted."""
        codes = self._rounded(found, encoding)
        if off:
            least, greatest = (_float(end) for end in _around(found, encoding, off))
            codes = torch.minimum(least, codes[1]), codes[1], torch.maximum(greatest, codes[1])
        least, middle, greatest = (real(each) for each in codes)
        error = torch.maximum(middle - least, greatest - middle)
        if self._twin.arithmetic.from_ends:
            error = error + _of_ends(middle, encoding)
        return ErrorBound(middle, error if error.any() else None)

    def _rounded(self, found: ErrorBound, encoding: Encoding) -> tuple[Tensor, Tensor, Tensor]:
        reach = found.spread + _TO_GRID * (found.value.abs() + _low(found.value, encoding))
        quantize = self._twin.arithmetic.quantize
        least, greatest = (quantize((found.value + sign * reach).float(), encoding) for sign in (-1, 1))
        return least, quantize(found.value.float(), encoding), greatest

    def _constant(self, read: Operand) -> Tensor:
        array = self._graph.constants[read.tensor]
        if read.tensor in self._graph.coded:
            assert read.encoding is not None
            return dequantize(_float(array), read.encoding)
        if not np.issubdtype(array.dtype, np.floating):
            return torch.from_numpy(np.array(array))
        real = _float(array)
        if read.encoding is None:
            return real
        return dequantize(self._twin.arithmetic.quantize(real, read.encoding), read.encoding)


def _wider(found: ErrorBound, slack: float) -> ErrorBound:
    """By so much of the largest number; whole numbers and truth values stay."""
    if not found.value.is_floating_point() or not found.value.numel():
        return found
    return ErrorBound(found.value, found.spread + slack * found.value.abs().nan_to_num(posinf=0.0).max())


def _low(value: Tensor, encoding: Encoding) -> Tensor:
    """How large the least number of the grid is."""
    low = np.abs(encoding.zero_point - encoding.qmin) * np.asarray(encoding.scale, np.float64)
    return torch.from_numpy(np.asarray(encoding.along(low, value.ndim, tuple(value.shape))))


def _of_ends(value: Tensor, encoding: Encoding) -> Tensor:
    """A product and a sum, rounded on either side."""
    return (4 * UNIT * (value.abs() + _low(value, encoding))).to(value.dtype)


def _around(found: ErrorBound, encoding: Encoding, off: float) -> tuple[Array, Array]:
    """The least and greatest code that real numbers may be rounded to if they are `off` by so many steps."""
    shape = tuple(found.value.shape)
    scale, zero = (encoding.along(part, len(shape), shape) for part in (encoding.scale, encoding.zero_point))
    steps, reach = (part.double().numpy() / np.asarray(scale, np.float64) for part in (found.value, found.spread))
    ends = np.ceil(steps - reach - off - 0.5), np.floor(steps + reach + off + 0.5)
    least, greatest = (np.clip(end + zero, encoding.qmin, encoding.qmax) for end in ends)
    return least, greatest


def _float(array: Array) -> Tensor:
    return torch.from_numpy(np.array(array, np.float32))

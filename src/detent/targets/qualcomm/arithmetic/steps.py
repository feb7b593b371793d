"""Selects what the HTP runs for each operation of a network: an integer kernel (`kernels`), a table, or float."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from detent.ir import Encoding, Network, Op, Operand, Trait, ops_with
from detent.targets.qualcomm.arithmetic import fixed as htp_fixed
from detent.targets.qualcomm.arithmetic.kernels import (
    CUT,
    FITTED,
    PARTS,
    WIDE,
    PartKernel,
    bias_behind,
    grid_of,
    number_of,
)
from detent.targets.qualcomm.arithmetic.wide import quantize_wide
from detent.twin import Step
from detent.twin.arithmetic import Maker
from detent.twin.float_ops import MOVES, only_moves
from detent.twin.lowering import chain, float_step, move_step
from detent.twin.requantize import clamp_bounds

__all__ = ["INTEGER_OPERATORS", "entries", "makers", "why_float"]

_CLIPS = ops_with(Trait.CLIPS)


def _fused_step(graph: Network, op: Op) -> Step | None:
    """An operation with the bias and clip that are fused into it."""
    adding = bias_behind(graph, op)
    made = chain(graph, adding or op, _CLIPS)
    output = grid_of(made.writes[0], *(("uint16",) if op.type in WIDE else ()))
    bounds = None if output is None else clamp_bounds(graph, made.ops[1:], output)
    if output is None or bounds is None:
        return None
    part = PARTS[op.type](graph, op, output, bounds)
    if part is None:
        return None
    cut = bounds != (output.qmin, output.qmax)
    ops = made.ops if adding is None else (op, *made.ops)
    known = output.dtype == "uint8" and not any(_is_rounded_later(graph, read) for read in part.reads)
    off = max(part.off, CUT if cut else 0.0, 0.0 if known else FITTED)
    return replace(part, off=off).step(ops, made.writes)


def _is_rounded_later(graph: Network, read: Operand | None) -> bool:
    """Whether it is the result of an operation on real numbers, which the HTP need not have rounded to the codes that
    it shows when it reads it."""
    maker = None if read is None else graph.producer(read.tensor)
    while maker is not None and (before := _part_before(graph, maker)) is not None:
        maker = before
    given = () if maker is None else maker.inputs
    return any(each is not None and each.encoding is None and each.tensor not in graph.constants for each in given)


def _part_before(graph: Network, op: Op) -> Op | None:
    """The operation whose bias or clipping `op` is: one integer kernel computes both, without real numbers between."""
    before = None if op.inputs[0] is None else graph.producer(op.inputs[0].tensor)
    if before is None:
        return None
    fused = op in chain(graph, before, _CLIPS, most=1).ops or op == bias_behind(graph, before)
    return before if fused else None


def _concat(graph: Network, op: Op) -> Step | None:
    """Every input is computed on the output's grid at once: its kernel requantizes straight to that grid, without the
    rounding to the grid on which others read the input."""
    output = grid_of(Operand(op.outputs[0], graph.grid_of(op.outputs[0])), "uint16")
    if output is None or any(grid_of(read, output.dtype) is None for read in op.inputs):
        return None
    parts = [_on_grid(graph, read, output) for read in op.inputs if read is not None]
    axis = int(op.attribute("axis"))

    def kernel(*values: Any) -> Tensor:
        given = iter(values)
        return torch.cat([part.kernel(*(next(given) for _ in part.reads)) for part in parts], axis)

    reads = tuple(read for part in parts for read in part.reads)
    known = output.dtype == "uint8" and not any(_is_rounded_later(graph, read) for read in reads)
    whole = PartKernel(reads, kernel, max([0.0 if known else FITTED, *(part.off for part in parts)]))
    return whole.step((op,), (Operand(op.outputs[0], output),))


def _on_grid(graph: Network, read: Operand, output: Encoding) -> PartKernel:
    """The codes of a tensor on another grid."""
    grid = grid_of(read, output.dtype)
    assert grid is not None
    if grid == output:
        return PartKernel((read,), lambda codes: codes)
    if read.tensor in graph.inputs and read.tensor not in graph.coded:
        quantize = htp_fixed.quantize if output.dtype == "uint8" else quantize_wide
        return PartKernel((Operand(read.tensor),), lambda values: quantize(values, output), FITTED)
    maker = graph.producer(read.tensor)
    if maker is not None and maker.type in PARTS:
        part = PARTS[maker.type](graph, maker, output, (output.qmin, output.qmax))
        if part is not None:
            return part
    exact = _clips(graph, maker)
    return PartKernel((read,), htp_fixed.convert(grid, output, exact=exact), 0.0 if exact else FITTED)


def _clips(graph: Network, maker: Op | None) -> bool:
    """Whether it clips the result of an integer operation."""
    if maker is None or maker.type not in _CLIPS or maker.inputs[0] is None:
        return False
    clipped = graph.producer(maker.inputs[0].tensor)
    if clipped is None or clipped.type not in PARTS:
        return False
    return all(read is None or read.encoding is not None for read in clipped.inputs)


_IN_FLOAT = ops_with(Trait.ARITHMETIC) | {"Max", "Min", "Pow"}
"""Run in float if one of their inputs is no integer, a constant among them."""

_TABLES = ops_with(Trait.ACTIVATION) - {"LeakyRelu", "Mish", "Softplus"} | {"Relu"}
"""Elementwise functions that are lookup tables."""


_WITH_NUMBERS = ("Add", "Max", "Min", "Sub")
"""Lookup tables too if one input is a quantized scalar constant."""

_FUNCTIONS = ("Clip", "Div", "LeakyRelu", "Mul", "PRelu")
"""Elementwise integer kernels that multiply or clip."""


INTEGER_OPERATORS = MOVES | PARTS.keys() | {"Concat", *_TABLES, *_WITH_NUMBERS, *_FUNCTIONS}
"""Operators with an integer kernel whose formula is known, and not only fitted to within 1 LSB (`FITTED`)."""


def _other(graph: Network, op: Op) -> Step:
    """On grids before and behind it: its output in real numbers, halves up. Else in float, on what the HTP takes its
    inputs for."""
    made = chain(graph, op, _CLIPS) if op.type in _IN_FLOAT else chain(graph, op)
    output = grid_of(made.writes[0])
    bounds = None if output is None else clamp_bounds(graph, made.ops[1:], output)
    real = [read for read in op.inputs if read is not None and read.encoding is None]
    computed = [read for read in real if op.type in _IN_FLOAT or read.tensor not in graph.constants]
    plain = float_step(graph, op)
    if only_moves(op):
        return plain
    if op.type == "LayerNormalization":
        given = replace(op, inputs=(_as_given(graph, op.inputs[0]), *op.inputs[1:]))
        return replace(float_step(graph, given), off=FITTED)
    if computed or output is None or bounds is None or len(op.outputs) > 1:
        return _in_float(graph, op)
    grid, limits = output, bounds

    def kernel(*codes: Any) -> Tensor:
        return htp_fixed.half_up(plain.kernel(*codes), grid).clamp_(*limits)

    of_one = op.type in _TABLES or (op.type in _WITH_NUMBERS and number_of(graph, op) is not None)
    off = 0.0 if of_one else CUT if op.type in _FUNCTIONS else FITTED
    return PartKernel(op.inputs, kernel, off).step(made.ops, made.writes)


def _as_given(graph: Network, read: Operand | None) -> Operand | None:
    """A float input of the network is read directly, not from its grid."""
    if read is None or read.tensor not in graph.inputs or read.tensor in graph.coded:
        return read
    return Operand(read.tensor)


def _in_float(graph: Network, op: Op) -> Step:
    """On what the HTP takes codes for (`fixed.real`) that it has just computed for others; the network's inputs, and
    what was moved before, are read as they are."""
    grids = {read.tensor: grid for read in op.inputs if read is not None and (grid := _computed_grid(graph, read))}
    reals = {tensor: partial(htp_fixed.real, grid=grid) for tensor, grid in grids.items()}
    bare = (Operand(read.tensor) if read is not None and read.tensor in grids else read for read in op.inputs)
    on_reals = float_step(graph, replace(op, inputs=tuple(bare)))

    def kernel(*values: Any) -> Any:
        pairs = zip(values, op.inputs, strict=True)
        return on_reals.kernel(
            *(
                reals[read.tensor](value) if read is not None and read.tensor in reals else value
                for value, read in pairs
            )
        )

    return replace(on_reals, reads=op.inputs, kernel=kernel, off=FITTED, reals=reals)


def _computed_grid(graph: Network, read: Operand) -> Encoding | None:
    return grid_of(read) if _is_computed(graph, read.tensor) else None


def _is_computed(graph: Network, tensor: str) -> bool:
    maker = graph.producer(tensor)
    return maker is not None and not only_moves(maker)


def why_float(graph: Network, op: Op) -> str:
    """Which input or output is not quantized, so that the HTP computes the operation in float; empty if it runs on
    codes."""
    while (before := _part_before(graph, op)) is not None:
        op = before
    weighted = op.type in ops_with(Trait.WEIGHTED)
    for read in op.inputs[:2] if weighted else op.inputs:
        if read is None or _before_moves(graph, read).encoding is not None or not _is_real(graph, read.tensor):
            continue
        if weighted or read.tensor not in graph.constants:
            return f"its {'constant' if read.tensor in graph.constants else 'input'} {read.tensor!r} is not quantized"
    output = chain(graph, bias_behind(graph, op) or op, _CLIPS).output
    if not only_moves(op) and not any(graph.encodings(output)) and _is_real(graph, output):
        return f"its output {output!r} is not quantized"
    return ""


def _before_moves(graph: Network, read: Operand) -> Operand:
    """The source of a tensor before data movement."""
    maker = graph.producer(read.tensor)
    while read.encoding is None and maker is not None and only_moves(maker) and maker.inputs[0] is not None:
        read = maker.inputs[0]
        maker = graph.producer(read.tensor)
    return read


def _is_real(graph: Network, tensor: str) -> bool:
    known = graph.inputs[tensor].dtype if tensor in graph.inputs else graph.dtypes.get(tensor, "float32")
    return known.startswith("float")


def makers(graph: Network) -> dict[str, Maker]:
    """A maker for every type of operation of the network."""
    moves = dict.fromkeys(MOVES, move_step)
    special: dict[str, Maker] = {**moves, **dict.fromkeys(PARTS, _fused_step), "Concat": _concat}

    def maker(graph: Network, op: Op) -> Step:
        found = special[op.type](graph, op) if op.type in special else None
        return found or _other(graph, op)

    return {op.type: maker for op in graph.ops}


def entries(graph: Network) -> list[Step]:
    """Steps that quantize the float inputs of the network."""
    found = []
    for name in graph.inputs:
        for grid in dict.fromkeys(graph.encodings(name)):
            if name not in graph.coded and grid_of(Operand(name, grid)) is not None:
                found.append(_entry(Operand(name), Operand(name, grid)))
    return found


def _entry(given: Operand, coded: Operand) -> Step:
    grid = coded.encoding
    assert grid is not None
    return Step((), (given,), (coded,), lambda values: htp_fixed.quantize(values, grid), "quantize")

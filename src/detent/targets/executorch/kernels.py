"""Which operations ExecuTorch's XNNPACK delegate runs on integers, told from the network alone.

Others run in float: some in the delegate, the rest in ExecuTorch's portable kernels. The writer of .pte files keeps
what is not meant here away from the integer kernels, and the twin computes in integers exactly what is.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from detent.ir import Encoding, Network, Op, Operand, Trait, ops_with, reduced_axes

__all__ = ["ON_INTEGERS", "runs_on_integers", "would_mistake"]

f32 = np.float32

_ONE_GRID = ops_with(Trait.RESHAPES) | ops_with(Trait.CLIPS) | {"Concat", "MaxPool", "Slice", "Split", "Transpose"}
"""They have one grid for all they read and give. On which side of a conversion they run changes no number."""

_FUSING = {"Add": ("Relu",), **dict.fromkeys(ops_with(Trait.WEIGHTED), ops_with(Trait.CLIPS))}
"""What may be a part of the kernel before it."""

ON_INTEGERS = frozenset({*_ONE_GRID, *_FUSING, "GlobalAveragePool", "Mul", "ReduceMean", "Sub"})
"""What the delegate has an integer kernel for."""

_ADD, _PRODUCT, _SUM = (2.0**-10, 2.0**8), (2.0**-16, 2.0**8), (0.0, 2.0**8)
"""Between which bounds XNNPACK wants the ratio of the scales before and behind a kernel."""


def runs_on_integers(graph: Network, ops: Sequence[Op]) -> bool:
    """Whether `ops`, an operation and what may be fused behind it, are a kernel on codes: what it reads is on grids,
    its output is read on one only, and XNNPACK has a kernel for the scales."""
    op = ops[0]
    grid = graph.grid_of(ops[-1].outputs[0])
    reads = [read for read in _data(op) if read.encoding is not None]
    if grid is None or not _is_full(grid) or len(reads) < len(_data(op)):
        return False
    if op.type in ops_with(Trait.WEIGHTED):
        return _weighted(graph, ops, reads, grid)
    if not all(_is_full(read.encoding) for read in reads):
        return False
    if op.type in _ONE_GRID:
        others = [graph.grid_of(name) for name in op.outputs if name]
        return len(ops) == 1 and all(each == grid for each in (*others, *(read.encoding for read in reads)))
    if op.type in ("Add", "Sub"):
        fits = all(_within(_ADD, _scale(read), grid) for read in reads)
        return fits and all(each.type in _FUSING.get(op.type, ()) for each in ops[1:])
    if op.type == "Mul":
        return len(ops) == 1 and _within(_PRODUCT, _scale(reads[0]) * _scale(reads[1]), grid)
    return _is_mean_of_planes(graph, op)


def would_mistake(graph: Network, op: Op) -> bool:
    """Whether ExecuTorch would take an operation for one on integers that XNNPACK has no kernel for: it writes a file
    then that it does not load."""
    if op.type not in ON_INTEGERS:
        return False
    behind = [reader for reader, read in graph.readers(op.outputs[0]) if read.encoding is None]
    fuses = len(behind) == 1 and op.type in _FUSING and behind[0].type in _FUSING[op.type]
    ops = (op, *behind) if fuses else (op,)
    on_grids = all(read.encoding is not None for read in _data(op)) and graph.grid_of(ops[-1].outputs[0]) is not None
    return on_grids and not runs_on_integers(graph, ops)


def _data(op: Op) -> list[Operand]:
    """What an operation reads that are values of the network, not sizes, axes or bounds."""
    count = 2 if op.type in ops_with(Trait.WEIGHTED) | {"Add", "Mul", "Sub"} else 1
    return [read for read in (op.inputs if op.type == "Concat" else op.inputs[:count]) if read is not None]


def _weighted(graph: Network, ops: Sequence[Op], reads: Sequence[Operand], grid: Encoding) -> bool:
    op, (data, weight) = ops[0], reads
    held, kind = graph.constants.get(weight.tensor), weight.encoding
    if held is None or kind is None or kind.dtype != "int8" or kind.block is not None or not kind.symmetric:
        return False
    if not _is_full(data.encoding) or not all(_is_fused(graph, op, each) for each in ops[1:]):
        return False
    if op.type == "Conv" and not (held.ndim in (3, 4) and kind.axis in (None, 0)):
        return False
    if op.type == "ConvTranspose":
        grouped = op.groups > 1
        if held.ndim != 4 or kind.axis not in (None, 1) or (kind.axis is not None and grouped):
            return False
    if op.type == "Gemm" and not _is_plain(graph, op):
        return False
    return _within(_SUM, _scale(data) * _scale(weight), grid)


def _is_fused(graph: Network, op: Op, behind: Op) -> bool:
    """Whether what is behind a layer is a part of it: the Add of its bias, a ReLU, a Clip with two bounds."""
    if behind.type == "Clip":
        bounds = [read.tensor for read in behind.inputs[1:] if read is not None]
        return len(bounds) == 2 and all(bound in graph.constants for bound in bounds)
    return behind.type == "Relu" or (behind.type == "Add" and op.type == "MatMul")


def _is_plain(graph: Network, op: Op) -> bool:
    """Whether it is a linear layer: nothing is scaled, and what is added is one number for each of its outputs."""
    factors = (op.attribute("alpha"), op.attribute("beta"))
    bias = op.optional(2)
    held = None if bias is None else graph.constants.get(bias.tensor)
    added = bias is None or (held is not None and held.ndim == 1)
    return added and factors == (1.0, 1.0) and not op.attribute("transA")


def _is_mean_of_planes(graph: Network, op: Op) -> bool:
    data = op.inputs[0]
    if data is None or len(graph.shapes.get(data.tensor, ())) != 4:
        return False
    keeps = op.type == "GlobalAveragePool" or (op.type == "ReduceMean" and bool(op.attribute("keepdims")))
    return keeps and reduced_axes(graph, op, 4) == (2, 3)


def _is_full(encoding: Encoding | None) -> bool:
    return encoding is not None and encoding.per_tensor and encoding.full and encoding.dtype in ("int8", "uint8")


def _scale(read: Operand) -> np.float32:
    assert read.encoding is not None
    found: np.float32 = read.encoding.scale.max()
    return found


def _within(bounds: tuple[float, float], scale: np.float32, grid: Encoding) -> bool:
    return bounds[0] <= float(scale / f32(grid.scale)) < bounds[1]

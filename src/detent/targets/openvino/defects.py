"""Mistakes of OpenVINO that Detent does not write around: its own float execution of the same file does not make
them."""

from __future__ import annotations

import math

import numpy as np

from detent.ir import Network, Op
from detent.targets.base import Defect

__all__ = ["DEFECTS"]


def _ends_near_zero(graph: Network, op: Op) -> bool:
    grids = [read.encoding for read in op.inputs if read is not None and read.encoding is not None]
    grids += [grid for name in op.outputs for grid in graph.encodings(name) if grid is not None]
    return any(float(np.min(grid.scale)) * (grid.qmax - grid.qmin) < 1e-6 for grid in grids)


def _grouped_sum_of_channels(graph: Network, op: Op) -> bool:
    """A grouped convolution, followed by a sum and a per-channel constant."""
    if op.type != "Conv" or op.groups == 1:
        return False
    sums = [reader for name in op.outputs for reader, _ in graph.readers(name) if reader.type == "Add"]
    behind = [reader for each in sums for name in each.outputs for reader, _ in graph.readers(name)]
    constant = graph.constants.keys()
    return any(
        r.type in ("Add", "Mul") and any(i is not None and i.tensor in constant for i in r.inputs) for r in behind
    )


def _few_averages(graph: Network, op: Op) -> bool:
    """An average pool with fewer than 16 outputs per sample."""
    shape = graph.shapes.get(op.outputs[0], ())
    return op.type == "AveragePool" and math.prod(size for size in shape[1:] if isinstance(size, int)) < 16


DEFECTS = (
    Defect(
        ("2026.4",),
        "averages wrongly on CPUs without AVX-512 where a pool gives fewer than 16 numbers, by up to 189 steps",
        "run more samples at once, or leave that pool float (recipe `exclude`)",
        _few_averages,
    ),
    Defect(
        ("2026.4",),
        "computes numbers on grids whose whole range is below 1e-6 wrongly, by up to 118 steps",
        "such a layer gives nothing but zeros: take it out, or leave it float (recipe `exclude`)",
        _ends_near_zero,
    ),
    Defect(
        ("2026.4",),
        "applies constants for channels after a grouped convolution and a sum wrongly, by up to 198 steps",
        "leave that convolution float (recipe `exclude`)",
        _grouped_sum_of_channels,
    ),
)

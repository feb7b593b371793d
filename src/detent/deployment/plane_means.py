"""Writes the mean over each plane as a GlobalAveragePool, for which engines have an integer kernel; a ReduceMean runs
in float."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from detent.ir import Network, Op, Operand, TensorNames, reduced_axes

__all__ = ["pool_planes"]


def pool_planes(network: Network, *, on_grids: bool) -> Network:
    """Replace every mean over all spatial axes by a GlobalAveragePool of the same name.

    In three dimensions there is none, because the last axis may be the features. If the mean drops the axes, a Squeeze
    follows. With `on_grids`, for targets whose pooling runs on integers, the Squeeze is on the grid of its output as
    well: engines fuse only adjacent nodes.
    """
    names = TensorNames(network.names, ".")
    ops: list[Op] = []
    constants, shapes = dict(network.constants), dict(network.shapes)
    for op in network.ops:
        if not _is_plane_mean(network, op):
            ops.append(op)
            continue
        given = op.outputs[0]
        pool = replace(op, type="GlobalAveragePool", inputs=op.inputs[:1], attributes={})
        if op.attribute("keepdims"):
            ops.append(pool)
            continue
        pooled, axes = names.unique(f"{given}_pooled"), names.unique(f"{given}_axes")
        source = network.shapes[op.reads[0].tensor]
        shapes[pooled] = (*source[:2], *[1] * (len(source) - 2))
        constants[axes] = np.arange(2, len(source))
        encoding = next((one for one in network.encodings(given) if one is not None), None) if on_grids else None
        reads = (Operand(pooled, encoding), Operand(axes))
        ops += [replace(pool, outputs=(pooled,)), Op("Squeeze", names.unique(f"{given}/Squeeze"), reads, (given,))]
    return replace(network, ops=tuple(ops), constants=constants, shapes=shapes).pruned()


def _is_plane_mean(network: Network, op: Op) -> bool:
    rank = len(network.shapes.get(op.reads[0].tensor, ())) if op.type == "ReduceMean" else 0
    return rank >= 4 and reduced_axes(network, op, rank) == tuple(range(2, rank))

"""Replaces ReLU6 by ReLU, and undoes it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch.nn.functional as F
from torch import fx

from detent.algorithms.common.chains import Pair
from detent.graph import PreparedModel, Region

__all__ = ["Ceiling", "ceilings_of", "drop_ceiling", "put_back"]

Ceiling = tuple[Region, fx.Node, str, Any, Any, Any]
"""A node, where it is, and what it was: op, target, args, kwargs."""


def ceilings_of(pairs: Sequence[Pair]) -> list[Ceiling]:
    """The ReLU6 modules between pairs of layers, to be put back later."""
    return [
        (pair.first.region, node, node.op, node.target, node.args, node.kwargs)
        for pair in pairs
        for node in pair.ceilings
    ]


def drop_ceiling(prepared: PreparedModel, region: Region, node: fx.Node) -> None:
    """Replace a ReLU6 by a ReLU of the same name, by which quantizers and the Plan refer to it."""
    node.op, node.target, node.args, node.kwargs = "call_function", F.relu, (node.all_input_nodes[0],), {}
    region.recompile()
    _rename(prepared, node, "relu6", "relu")


def put_back(prepared: PreparedModel, ceilings: Sequence[Ceiling]) -> None:
    """Put every ReLU6 back."""
    for region, node, op, target, args, kwargs in ceilings:
        node.op, node.target, node.args, node.kwargs = op, target, args, kwargs
        region.recompile()
        _rename(prepared, node, "relu", "relu6")


def _rename(prepared: PreparedModel, node: fx.Node, old: str, new: str) -> None:
    plan = prepared.plan
    prepared.plan = replace(
        plan,
        entries=tuple(
            replace(entry, kind=new) if getattr(entry, "node", None) == node.name and entry.kind == old else entry
            for entry in plan.entries
        ),
    )

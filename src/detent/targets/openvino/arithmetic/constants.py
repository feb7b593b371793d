"""Constant folding in OpenVINO: what depends only on constants and sizes is computed once, when a network is compiled
for the sizes of its inputs. The reference FakeQuantize used there divides, while the kernels multiply."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from detent.ir import Encoding, Network, Op
from detent.targets.openvino.arithmetic.ranges import Range
from detent.targets.openvino.sizes import depend_on_sizes
from detent.twin import Step
from detent.twin.lowering import chain, float_step

__all__ = ["constant_folded", "folded_tensors"]


def folded_tensors(graph: Network) -> frozenset[str]:
    """The tensors that are folded. Weights stored as codes are not."""
    return depend_on_sizes(graph, through_weights=False)


def constant_folded(known: frozenset[str], graph: Network, op: Op) -> Step | None:
    """An operation with one output that is folded and read on one grid."""
    if len(op.outputs) != 1:
        return None
    made = chain(graph, op)
    grid = made.encoding
    if made.output not in known or grid is None or not grid.per_tensor:
        return None
    step = float_step(graph, op)

    def kernel(*inputs: Any) -> Tensor:
        return _codes(step.kernel(*inputs), grid)

    return replace(step, writes=made.writes, kernel=kernel, ran_as="integer")


def _codes(values: Tensor, grid: Encoding) -> Tensor:
    """`rne(f32(f32((value - il) / (ih - il)) * levels))`."""
    ends = Range.of(grid)
    low = torch.tensor(ends.low)
    width = torch.tensor(ends.high) - low
    codes = values.clamp(ends.low, ends.high).sub(low).div_(width).mul_(float(ends.levels)).round_().add_(ends.least)
    return codes.clamp_(grid.qmin, grid.qmax)

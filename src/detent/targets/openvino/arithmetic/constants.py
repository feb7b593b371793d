"""What OpenVINO computes once, when it compiles a network for the sizes of its inputs: whatever depends on constants
and sizes alone. Its quantization there is the reference one, which divides, and not the kernels', which multiply."""

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

__all__ = ["folded", "known_before"]


def known_before(graph: Network) -> frozenset[str]:
    """The tensors that it folds: weights that are stored as codes it does not."""
    return depend_on_sizes(graph, through_weights=False)


def folded(known: frozenset[str], graph: Network, op: Op) -> Step | None:
    """An operation whose one result is known before, and read on one grid."""
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

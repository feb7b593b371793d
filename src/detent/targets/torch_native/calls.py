"""Adds the call of an integer kernel to a program, with the activation function that is fused into it."""

from __future__ import annotations

from typing import Any

import numpy as np

from detent.ir import Encoding, Op, Operand, Trait, clip_bounds, ops_with
from detent.targets.torch_native.lowering import TorchLowering

__all__ = ["activation_of", "add_call"]


def activation_of(low: TorchLowering, ops: tuple[Op, ...]) -> tuple[tuple[Op, ...], tuple[float, float] | None, bool]:
    """`ops` with the ReLU or Clip after them, its bounds, and whether it is a ReLU."""
    following = low.behind(ops[-1], ops_with(Trait.CLIPS))
    if following is None or not all(low.is_constant(read) for read in following.inputs[1:] if read is not None):
        return ops, None, False
    if following.type == "Relu":
        return (*ops, following), None, True
    return (*ops, following), clip_bounds(low.graph, following), False


def add_call(
    low: TorchLowering,
    call: str,
    ops: tuple[Op, ...],
    reads: tuple[Operand | None, ...],
    grid: Encoding,
    clip: tuple[float, float] | None,
    relu: bool,
    attributes: dict[str, Any],
    constants: tuple[str | None, ...] = (),
) -> None:
    """Add the call of a kernel whose output is on `grid`, and its clamp where the codes are not all of uint8."""
    kernel = f"{call}_relu" if relu and call != "quantized.conv_transpose2d" else call
    least, greatest = grid.qmin, grid.qmax
    if clip is not None or (kernel == call and relu):
        bounds = (0.0, np.inf) if clip is None else clip
        # Rounding is monotone: clipping and then rounding gives what rounding and then clipping does.
        codes = grid.quantize(np.clip(np.array(bounds, np.float32), *_span(grid)))
        least, greatest = max(least, int(codes[0])), min(greatest, int(codes[1]))
    if (least, greatest) != (0, 255):
        attributes = {**attributes, "clamp": [least, greatest]}
    low.add(kernel, ops, reads, (Operand(ops[-1].outputs[0], grid),), constants=constants, attributes=attributes)


def _span(grid: Encoding) -> tuple[float, float]:
    ends = grid.dequantize(np.array([grid.qmin, grid.qmax]))
    return float(ends[0]), float(ends[1])

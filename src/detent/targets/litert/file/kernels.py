"""The grids on which LiteRT has integer kernels: those that it prescribes, and 16-bit ones.

The writer and the twin ask here, so that they agree; what has no kernel runs in float.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from detent.ir import Encoding, Trait, ops_with

__all__ = ["SHORT_SUMS", "has_kernel", "has_short_sums", "is_wide", "sums_fit"]

SHORT_SUMS = "short_sums"
"""The attribute of a convolution that was read from a file on 16 bits: whether it adds up in 32 bits."""

_WIDE = frozenset(
    {
        *ops_with(Trait.WEIGHTED),
        *ops_with(Trait.POOL),
        *ops_with(Trait.EXTREME),
        *ops_with(Trait.MOVES_VALUES) - {"DepthToSpace", "GatherElements", "SpaceToDepth"},
        *("Add", "Sub", "Mul", "Concat", "Pad", "Resize", "ReduceMean"),
        *ops_with(Trait.CLIPS),
        *("LeakyRelu", "Gelu", "Sigmoid", "Tanh", "Softmax"),
    }
)
"""ONNX operations with a kernel for int16. PRELU loads with it too, and gives wrong numbers."""

_PRESCRIBED = {
    "Sigmoid": (1 / 256, -128),
    "Softmax": (1 / 256, -128),
    "Tanh": (1 / 128, 0),
    "LogSoftmax": (16 / 256, 127),
}
"""Scale and zero point that the format prescribes for the output of an operation."""

_PRESCRIBED_WIDE = dict.fromkeys(("Sigmoid", "Softmax", "Tanh"), (1 / 2**15, 0))

_COARSE = {"Sigmoid": (-12,), "Tanh": (-12, -11)}
"""Powers of two near which the optimized kernels compute the function of a scale in another way, up to 11 steps off."""

_NEAR = 2e-3


def is_wide(encoding: Encoding) -> bool:
    """Whether its codes have 16 bits."""
    return encoding.dtype == "int16"


def has_kernel(kind: str, reads: Sequence[Encoding], gives: Encoding) -> bool:
    """Whether an operation between activations on these grids runs on integers, as far as the grids determine it."""
    wide = is_wide(gives)
    if any(is_wide(grid) != wide for grid in reads) or (wide and kind not in _WIDE):
        return False
    prescribed = (_PRESCRIBED_WIDE if wide else _PRESCRIBED).get(kind)
    if prescribed is not None and not _is(gives, *prescribed):
        return False
    if wide and kind == "Add":
        # Where this does not hold, LiteRT ends the process.
        return bool(2 * max(np.float64(grid.scale) for grid in reads) < 2**15 * np.float64(gives.scale))
    return not (wide and kind in _COARSE and _near_power(float(reads[0].scale), _COARSE[kind]))


def _is(encoding: Encoding, scale: float, zero_point: int) -> bool:
    shift = 128 if encoding.dtype == "uint8" else 0
    return bool(encoding.scale == np.float32(scale) and encoding.zero_point - shift == zero_point)


def _near_power(scale: float, powers: Sequence[int]) -> bool:
    return any(abs(math.log2(scale) - power) < _NEAR for power in powers)


def has_short_sums(weights: npt.NDArray[np.generic], bias: npt.NDArray[np.generic] | None) -> bool:
    """Whether the sums of a convolution of 16-bit codes always fit in 32 bits; output channels are the first axis.

    >>> has_short_sums(np.full((1, 516), 127), None), has_short_sums(np.full((1, 517), 127), None)
    (True, False)
    """
    totals = np.abs(weights.astype(np.int64)).reshape(len(weights), -1).sum(1) * 2**15
    return bool((totals + (0 if bias is None else np.abs(bias.astype(np.int64)))).max(initial=0) < 2**31)


def sums_fit(encoding: Encoding, count: int) -> bool:
    """Whether the mean of so many codes is correct: LiteRT adds them in 32 bits."""
    return not is_wide(encoding) or count * 2**15 < 2**31

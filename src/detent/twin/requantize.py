"""Quantization, dequantization, and requantization of sums of products: the parts in which engines differ.

Everything here takes and gives float32 tensors that hold integers (see `arithmetic`). "f32" in a formula is a rounding
to float32 after that operation.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from detent.ir import Encoding, Network, Op, clip_bounds

__all__ = [
    "Requantizer",
    "clamp_bounds",
    "dequantize",
    "float32_multiplier",
    "fma",
    "per_channel",
    "quantize",
]

Requantizer = Callable[[Tensor], Tensor]
"""From exact accumulators (float32 or float64 that hold integers) to codes. It may change its argument in place."""


def quantize(values: Tensor, encoding: Encoding) -> Tensor:
    """Quantize as ONNX does: divide in float32, round ties to even, add the zero point, saturate.

    >>> grid = Encoding(np.float32(0.5), np.int64(3), "uint8")
    >>> quantize(torch.tensor([0.25, 0.75, -9.0, 1000.0]), grid).tolist()
    [3.0, 5.0, 0.0, 255.0]
    """
    scale, zero_point = _along(encoding, encoding.scale, values), _along(encoding, encoding.zero_point, values)
    codes: Tensor = values / scale
    return codes.round_().add_(zero_point).clamp_(encoding.qmin, encoding.qmax)


def dequantize(codes: Tensor, encoding: Encoding) -> Tensor:
    """Dequantize as ONNX does: subtract in integers, multiply in float32."""
    scale = _along(encoding, encoding.scale, codes)
    if encoding.symmetric:
        real: Tensor = codes * scale
        return real
    shifted: Tensor = codes - _along(encoding, encoding.zero_point, codes)
    return shifted.mul_(scale)


def _along(encoding: Encoding, values: npt.NDArray[Any], tensor: Tensor) -> Any:
    """Scale or zero point, broadcast against a tensor; a Python number (exact in float32 arithmetic) if there is only
    one."""
    if encoding.axis is None:
        return float(values)
    along = encoding.along(values, tensor.ndim, tuple(tensor.shape))
    return torch.from_numpy(np.array(along, np.float32))


def per_channel(values: npt.NDArray[np.generic], shape: Sequence[int]) -> Tensor:
    """One float32 number for each output channel, in the shape that broadcasts against the output."""
    return torch.from_numpy(np.array(values, np.float32).reshape(-1)).reshape(*shape)


def float32_multiplier(
    scale: npt.NDArray[np.generic],
    shape: Sequence[int],
    output: Encoding,
    bounds: tuple[int, int],
) -> Requantizer:
    """`clip(rne(f32(f32(acc) * f32(scale / sy))) + zy)`: ONNX Runtime, XNNPACK, FBGEMM and QNNPACK.

    `scale` is `f32(sx * sw)`, one or one per output channel; `shape` broadcasts it against the accumulators.
    """
    multiplier = per_channel(np.asarray(scale, np.float32) / np.float32(output.scale), shape)
    zero_point = int(output.zero_point)
    low, high = bounds

    def requantize(accumulators: Tensor) -> Tensor:
        real = accumulators.to(torch.float32).mul_(multiplier).round_()
        return (real.add_(zero_point) if zero_point else real).clamp_(low, high)

    return requantize


def clamp_bounds(graph: Network, ops: Sequence[Op], encoding: Encoding) -> tuple[int, int] | None:
    """The lowest and highest code that Relu and Clip operations leave on the grid of their output; None if one of `ops`
    is another operation, or its bounds are computed. A bound between two codes is rounded: `rne(f32(bound / scale)) +
    zero_point`."""
    low, high = encoding.qmin, encoding.qmax
    for op in ops:
        bounds = clip_bounds(graph, op)
        if bounds is None:
            return None
        least, greatest = bounds
        low = low if least == -np.inf else min(max(low, _code(least, encoding)), encoding.qmax)
        high = high if greatest == np.inf else max(min(high, _code(greatest, encoding)), encoding.qmin)
    return low, high


def _code(bound: float, encoding: Encoding) -> int:
    return int(np.rint(np.float32(bound) / np.float32(encoding.scale)).astype(np.float64) + encoding.zero_point)


def fma(a: Tensor, b: Tensor | float, c: Tensor | float) -> Tensor:
    """`f32(a * b + c)` with one rounding, for operands of which the product and sum fit in the 53 bits of a float64
    (codes times float32 scales do)."""
    product = a.to(torch.float64) * b
    wider = isinstance(c, Tensor) and c.shape != product.shape
    return (product + c if wider else product.add_(c)).to(torch.float32)

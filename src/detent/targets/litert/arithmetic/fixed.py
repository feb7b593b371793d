"""LiteRT's own kernels, optimized and reference: fixed-point arithmetic that differs in how products are rounded."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from detent.ir import Encoding
from detent.targets.litert.arithmetic.gemmlowp import half_away_multiply, multiplier, multiply, ruy_multiply
from detent.targets.litert.file.kernels import is_wide
from detent.twin.accumulate import Accumulator
from detent.twin.arithmetic import Kernel
from detent.twin.requantize import Requantizer

__all__ = [
    "add_kernel",
    "convert_kernel",
    "fixed_requantizer",
    "float_softmax",
    "in_channel_groups",
    "in_groups",
    "in_lanes",
    "matmul_multiplier",
    "matmul_requantizer",
    "mean_requantizer",
    "multiply_kernel",
    "real_multiplier",
    "spatial_mean_requantizer",
]

Integers = npt.NDArray[np.int64]
Multiply = Callable[[Integers, "Integers | int", "Integers | int"], Integers]
Bounds = tuple[int, int]


def _add_bits(y: Encoding) -> int:
    return 15 if is_wide(y) else 20


def _integers(values: Tensor) -> Integers:
    return values.to(torch.int64).numpy()


def _clamped(codes: Integers, zero_point: int, bounds: Bounds) -> Tensor:
    return torch.from_numpy(np.clip(codes + zero_point, *bounds).astype(np.float32))


def real_multiplier(acc: Accumulator, y: Encoding) -> npt.NDArray[np.float64]:
    """`sx * sw / sy` in double precision."""
    weight = np.asarray(acc.weight.scale, np.float64)
    return np.asarray(np.float64(acc.input.scale) * weight / np.float64(y.scale))


def fixed_requantizer(
    real: npt.NDArray[np.float64], shape: tuple[int, ...], y: Encoding, bounds: Bounds, rounding: Multiply = multiply
) -> Requantizer:
    """Requantize accumulators by the real multiplier `sx * sw / sy`: one, or one per channel in `shape`."""
    pairs = [multiplier(float(value)) for value in np.ravel(real)]
    single = len(pairs) == 1
    factors, shifts = (np.array(part, np.int64).reshape(() if single else shape) for part in zip(*pairs, strict=True))
    zero_point = int(y.zero_point)

    def requantize(sums: Tensor) -> Tensor:
        return _clamped(rounding(_integers(sums), factors, shifts), zero_point, bounds)

    return _by_sample(requantize) if rounding is multiply else requantize


def _by_sample(kernel: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Run an elementwise kernel one sample at a time: the 64-bit integers of a whole batch do not fit in the cache."""

    def one_by_one(*tensors: Tensor) -> Tensor:
        samples = {tensor.shape[0] if tensor.ndim > 1 else 1 for tensor in tensors}
        if len(samples) > 1 or samples == {1}:
            return kernel(*tensors)
        ones = range(samples.pop())
        return torch.cat([kernel(*(tensor[one : one + 1] for tensor in tensors)) for one in ones])

    return one_by_one


def convert_kernel(x: Encoding, y: Encoding, rounding: Multiply = multiply) -> Kernel:
    real = np.float64(x.scale) / np.float64(y.scale)
    requantize = fixed_requantizer(np.array(real), (), y, (y.qmin, y.qmax), rounding)
    return lambda codes: requantize(codes - int(x.zero_point))


def in_lanes(a: Integers, integer: Integers | int, shift: Integers | int) -> Integers:
    """Multiply as the vector code does for whole groups of 16 elements, in the memory order of the file, and as the
    scalar code does for the rest."""
    if a.size % 16 == 0:
        return ruy_multiply(a, integer, shift)
    fast = in_groups(a.shape, 16)
    return np.where(fast, ruy_multiply(a, integer, shift), multiply(a, integer, shift))


def in_channel_groups(size: int) -> Multiply:
    """Like `in_lanes`, for whole groups of channels, which are on axis 1."""

    def rounding(a: Integers, integer: Integers | int, shift: Integers | int) -> Integers:
        channels = a.shape[1]
        if channels % size == 0:
            return ruy_multiply(a, integer, shift)
        fast = (np.arange(channels) < channels // size * size).reshape(1, -1, *[1] * (a.ndim - 2))
        return np.where(fast, ruy_multiply(a, integer, shift), multiply(a, integer, shift))

    return rounding


def in_groups(shape: tuple[int, ...], size: int) -> npt.NDArray[np.bool_]:
    """A mask of the elements in whole groups, in the memory order of the file, where channels are last."""
    turned = (shape[0], *shape[2:], shape[1]) if len(shape) == 4 else shape
    total = int(np.prod(shape))
    fast = (np.arange(total) < total // size * size).reshape(turned)
    return np.moveaxis(fast, -1, 1) if len(shape) == 4 else fast


def add_kernel(a: Encoding, b: Encoding, y: Encoding, bounds: Bounds, sign: int, *, lanes: bool = False) -> Kernel:
    """Rescale both operands to a common grid of twice the larger scale and more bits, add, requantize.

    With `lanes`, whole groups of 16 elements round the operands once, if none of them is broadcast.
    """
    twice = 2 * max(np.float64(a.scale), np.float64(b.scale))
    left, right = multiplier(float(np.float64(a.scale) / twice)), multiplier(float(np.float64(b.scale) / twice))
    bits = _add_bits(y)
    out = multiplier(float(twice / (np.float64(1 << bits) * np.float64(y.scale))))

    def total(first: Integers, second: Integers, rounding: Multiply) -> Integers:
        scaled = rounding(first << bits, *left) + sign * rounding(second << bits, *right)
        return multiply(scaled, *out)

    def kernel(first: Tensor, second: Tensor) -> Tensor:
        one, other = _integers(first) - int(a.zero_point), _integers(second) - int(b.zero_point)
        fast = lanes and one.shape == other.shape
        codes = total(one, other, half_away_multiply if fast else multiply)
        if fast and one.size % 16:
            codes = np.where(in_groups(one.shape, 16), codes, total(one, other, multiply))
        return _clamped(codes, int(y.zero_point), bounds)

    return kernel if lanes else _by_sample(kernel)


def multiply_kernel(a: Encoding, b: Encoding, y: Encoding, bounds: Bounds, rounding: Multiply = multiply) -> Kernel:
    real = np.float64(np.float32(a.scale) * np.float32(b.scale) / np.float32(y.scale))
    requantize = fixed_requantizer(np.array(real), (), y, bounds, rounding)
    exact = torch.float64 if is_wide(y) else torch.float32
    return lambda first, second: requantize((first.to(exact) - int(a.zero_point)) * (second - int(b.zero_point)))


def matmul_multiplier(a: Encoding, b: Encoding, y: Encoding) -> npt.NDArray[np.float64]:
    """The real multiplier of a product of two activations: `f32(sa * sb) / sy`, divided in double precision."""
    return np.asarray(np.float64(np.float32(a.scale) * np.float32(b.scale)) / np.float64(y.scale))


def matmul_requantizer(a: Encoding, b: Encoding, y: Encoding) -> Requantizer:
    return fixed_requantizer(matmul_multiplier(a, b, y), (), y, (y.qmin, y.qmax))


def mean_requantizer(x: Encoding, y: Encoding, count: int, shift: int) -> Requantizer:
    """The division by `count` is folded into the multiplier."""
    integer, exponent = multiplier(float(np.float64(x.scale) / np.float64(y.scale)))
    room = min(count.bit_length() - 1, 32, 31 + exponent)
    factor, exponent = (integer << room) // count, exponent - room
    zero = count * (int(x.zero_point) - shift)
    return lambda sums: _clamped(
        multiply(_integers(sums) - zero, factor, exponent), int(y.zero_point), (y.qmin, y.qmax)
    )


def spatial_mean_requantizer(x: Encoding, y: Encoding, count: int, shift: int) -> Requantizer:
    """Over rows and columns: the zero points are folded into one number, rounded by itself."""
    real = float(np.float32(x.scale) / (np.float32(count) * np.float32(y.scale)))
    zero = np.float32(int(x.zero_point) - shift) * np.float32(x.scale) / np.float32(y.scale)
    offset = int(y.zero_point) - int(np.sign(zero) * np.floor(np.abs(np.float64(zero)) + 0.5))
    factor, exponent = multiplier(real)
    rounding = in_channel_groups(16)
    return lambda sums: _clamped(rounding(_integers(sums), factor, exponent), offset, (y.qmin, y.qmax))


def float_softmax(x: Encoding, y: Encoding) -> Kernel:
    """A table of exp in float32, summed in order, and one division for each row."""
    distances = np.float32(-x.scale) * np.arange(256, dtype=np.float32)
    table = torch.from_numpy(np.exp(distances.astype(np.float64)).astype(np.float32))
    scale, zero_point = float(y.scale), int(y.zero_point)

    def kernel(codes: Tensor) -> Tensor:
        exps = table[(codes.amax(-1, keepdim=True) - codes).long()]
        total = torch.zeros_like(exps[..., :1])
        for index in range(exps.shape[-1]):
            total = total + exps[..., index : index + 1]
        inverse = 1.0 / (total * scale)
        return (exps * inverse).round_().add_(zero_point).clamp_(y.qmin, y.qmax)

    return kernel

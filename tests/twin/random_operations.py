"""The operations of random nets: each with random attributes, on what was made before it."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.twin.builder import Array, Builder, T
from tests.twin.nets import linear

__all__ = ["MAKERS", "Extreme", "convolved"]


class Extreme(Builder):
    """Now and then a zero point at the end of its grid, or weights that are all zero, or all at their end."""

    def chance(self, share: float) -> bool:
        return bool(self.random.random() < share)

    def zero_point(self, *, relu: bool) -> int:
        if relu or self.style.symmetric or not self.chance(0.15):
            return super().zero_point(relu=relu)
        return int(self.random.choice([self.low, self.low + 1, self.high - 1, self.high]))

    def _weight_codes(self, shape: tuple[int, ...]) -> Array:
        codes = super()._weight_codes(shape)
        if self.chance(0.15):
            most = self.style.weight_range
            codes[: len(codes) // 2] = self.random.choice([0, most, -most])
        return codes

    def numbers(self, low: int, high: int, count: int) -> list[int]:
        return [int(number) for number in self.random.integers(low, high, size=count)]


def convolved(b: Extreme, x: T, _made: list[T]) -> T:
    channels, sizes = x.value.shape[1], x.value.shape[2:]
    if len(sizes) != 2:
        return _linear(b, x, _made)
    kernel, dilations = b.numbers(1, 8 if b.chance(0.2) else 4, 2), b.numbers(1, 4 if b.chance(0.3) else 2, 2)
    pads = [int(b.random.integers(0, k)) for k in kernel * 2]
    kernel = [
        k if size + before + after > (k - 1) * d else 1
        for k, d, size, before, after in zip(kernel, dilations, sizes, pads[:2], pads[2:], strict=True)
    ]
    groups = [g for g in range(1, channels + 1) if channels % g == 0]
    group = int(b.random.choice([1, channels, b.random.choice(groups)]))
    outputs = group * (1 if b.chance(0.5) else int(b.random.integers(1, max(2, 40 // group))))
    then, strides = b.random.choice([None, "Relu", "Relu6"]), b.numbers(1, 4 if b.chance(0.4) else 2, 2)
    return b.weighted(
        "Conv", x, (outputs, channels // group, *kernel), axis=0, then=then,
        kernel_shape=kernel, pads=pads, strides=strides, dilations=dilations, group=group,
    )  # fmt: skip


def _pool(kind: str, *, keeps: bool) -> Any:
    def make(b: Extreme, x: T, made: list[T]) -> T:
        if x.value.ndim != 4:
            return _linear(b, x, made)
        kernel = [min(k, size) for k, size in zip(b.numbers(1, 4, 2), x.value.shape[2:], strict=True)]
        pads = [int(b.random.integers(0, k // 2 + 1)) for k in kernel]
        pooled = b.float_op(
            kind, x, kernel_shape=kernel, strides=b.numbers(1, 4, 2), pads=pads * 2, ceil_mode=int(b.chance(0.3))
        )
        assert x.scale is not None
        return b.quantized(pooled, like=x if keeps else None, unit=float(x.scale) / float(np.prod(kernel)))

    return make


def _global_pool(b: Extreme, x: T, made: list[T]) -> T:
    if x.value.ndim != 4:
        return _linear(b, x, made)
    assert x.scale is not None
    mean = b.float_op("GlobalAveragePool", x)
    return b.quantized(mean, unit=float(x.scale) / float(np.prod(x.value.shape[2:])))


def _pair(kind: str) -> Any:
    def make(b: Extreme, x: T, made: list[T]) -> T:
        assert x.scale is not None
        alike = [each for each in made if each.value.shape == x.value.shape and each is not x]
        times = 2 if b.style.scales == "pot" else 3
        y = alike[0] if alike else b.input(b.name("y"), *x.value.shape, spread=float(x.scale) * times)
        assert y.scale is not None
        result = b.float_op(kind, *((x, y) if b.chance(0.5) else (y, x)))
        relu = b.chance(0.4)
        unit = float(x.scale * y.scale) if kind == "Mul" else float(x.scale)
        return b.quantized(b.activation("Relu", result) if relu else result, relu=relu, unit=unit)

    return make


def _concat(b: Extreme, x: T, made: list[T]) -> T:
    assert x.scale is not None
    alike = [each for each in made if each.value.shape[2:] == x.value.shape[2:] and each.value.ndim == x.value.ndim]
    other = alike[int(b.random.integers(len(alike)))]
    return b.quantized(b.float_op("Concat", x, other, axis=1), unit=float(x.scale))


def _linear(b: Extreme, x: T, _made: list[T]) -> T:
    if x.value.ndim != 2:
        x = b.quantized(b.float_op("Flatten", x), like=x)
    return linear(b, x, int(b.random.integers(1, 30)), then="Relu" if b.chance(0.5) else None)


_FROM_ZERO = ("HardSigmoid", "Relu", "Sigmoid")


def _function(kind: str, **attributes: Any) -> Any:
    return lambda b, x, _made: b.quantized(b.float_op(kind, x, **attributes), relu=kind in _FROM_ZERO)


def _images(make: Any) -> Any:
    """A linear layer in its place where there are no images."""
    return lambda b, x, made: make(b, x, made) if x.value.ndim == 4 else _linear(b, x, made)


def _transposed(b: Extreme, x: T, _made: list[T]) -> T:
    channels, kernel, strides = x.value.shape[1], b.numbers(1, 4, 2), b.numbers(1, 4, 2)
    group = 1 if b.style.per_channel else int(b.random.choice([1, 1, channels]))
    outputs = int(b.random.integers(1, 9 if group == 1 else 3))
    pads = [int(b.random.integers(0, (k + 1) // 2)) for k in kernel] * 2
    reaches = zip(x.value.shape[2:], strides, kernel, pads, strict=False)
    if any((size - 1) * stride + k - 2 * pad < 1 for size, stride, k, pad in reaches):
        pads = [0] * 4
    return b.weighted(
        "ConvTranspose", x, (channels, outputs, *kernel), axis=1, then=b.random.choice([None, "Relu", "Relu6"]),
        kernel_shape=kernel, strides=strides, pads=pads, group=group,
    )  # fmt: skip


def _clip(b: Extreme, x: T, _made: list[T]) -> T:
    assert x.scale is not None
    low = 0.0 if b.chance(0.5) else float(x.value.quantile(0.05 * float(b.random.random())))
    high = 6.0 if b.chance(0.25) else float(x.value.quantile(1 - 0.2 * float(b.random.random())))
    bounds = {b.name("low"): low, b.name("high"): high if high > low else low + float(x.scale) * 3.3}
    made = b.float_op("Clip", x, *bounds, constants={name: np.array(at, np.float32) for name, at in bounds.items()})
    return b.quantized(made, like=x) if b.chance(0.3) else b.quantized(made, relu=low >= 0)


def _softmax(b: Extreme, x: T, _made: list[T]) -> T:
    return b.quantized(b.float_op("Softmax", x, axis=int(b.random.choice([1, -1]))), relu=True)


def _layer_norm(b: Extreme, x: T, _made: list[T]) -> T:
    size = x.value.shape[-1]
    held = {b.name("gain"): b.random.uniform(0.5, 2, size), b.name("offset"): b.random.normal(size=size)}
    constants = {name: array.astype(np.float32) for name, array in held.items()}
    return b.quantized(b.float_op("LayerNormalization", x, *constants, constants=constants, axis=-1))


def _pad(b: Extreme, x: T, _made: list[T]) -> T:
    along = np.array([1, 1] if b.chance(0.5) else b.random.permutation([0, 1]))
    pads = np.array(b.numbers(0, 3, 4)).reshape(2, 2) * along
    value = float(x.value.quantile(float(b.random.random()))) if b.chance(0.3) else 0.0
    held = {
        b.name("pads"): np.array([0, 0, *pads[0], 0, 0, *pads[1]]),
        b.name("value"): np.array(value, np.float32),
    }
    return b.quantized(b.float_op("Pad", x, *held, constants=held), like=x)


def _nearest(b: Extreme, x: T, _made: list[T]) -> T:
    held = {b.name("scales"): np.array([1, 1, *b.numbers(1, 4, 2)], np.float32)}
    how = {"mode": "nearest", "nearest_mode": "floor", "coordinate_transformation_mode": "asymmetric"}
    return b.quantized(b.float_op("Resize", x, None, *held, constants=held, **how), like=x)


def _matmul(b: Extreme, x: T, _made: list[T]) -> T:
    shape = (x.value.shape[-1], int(b.random.integers(1, 20)))
    return b.weighted("MatMul", x, shape, axis=1, then="Relu" if b.chance(0.3) else None)


def _moved(b: Extreme, x: T, _made: list[T]) -> T:
    moved = b.float_op("Transpose", x, perm=[0, 1, 3, 2])
    return b.quantized(moved, like=x) if b.chance(0.6) else b.on_the_grid_of(x, moved)


def _product(b: Extreme, x: T, made: list[T]) -> T:
    return b.quantized(b.float_op("MatMul", x, _moved(b, x, made)))


def _reduced(kind: str) -> Any:
    def make(b: Extreme, x: T, _made: list[T]) -> T:
        held = {b.name("axes"): np.array([2, 3] if b.chance(0.5) else [1])}
        return b.quantized(b.float_op(kind, x, *held, constants=held, keepdims=1))

    return make


def _with_constant(kind: str) -> Any:
    def make(b: Extreme, x: T, _made: list[T]) -> T:
        channels = (1, x.value.shape[1], *[1] * (x.value.ndim - 2)) if b.chance(0.6) else ()
        constant = b.coded_constant(b.name("constant"), *channels)
        return b.quantized(b.float_op(kind, *((x, constant) if b.chance(0.7) else (constant, x))))

    return make


def _residual(b: Extreme, x: T, made: list[T]) -> T:
    """A convolution that is added to what it or another operation has read, with a grid in between or without."""
    assert x.scale is not None
    channels = x.value.shape[1]
    size = 1 + 2 * int(b.chance(0.5))
    shape, attributes = (channels, channels, size, size), {"kernel_shape": [size] * 2, "pads": [size // 2] * 4}
    y = b.weighted("Conv", x, shape, axis=0, grid=b.chance(0.5), **attributes)
    alike = [each for each in made if each.value.shape == y.value.shape and each is not x]
    other = alike[0] if alike and b.chance(0.4) else x
    result, relu = b.float_op("Add", *((y, other) if b.chance(0.5) else (other, y))), b.chance(0.5)
    return b.quantized(b.activation("Relu", result) if relu else result, relu=relu, unit=float(x.scale))


MAKERS: dict[str, Any] = {
    "add": _pair("Add"),
    "add_constant": _with_constant("Add"),
    "average": _pool("AveragePool", keeps=True),
    "average_anew": _pool("AveragePool", keeps=False),
    "clip": _clip,
    "concat": _concat,
    "conv": convolved,
    "elu": _function("Elu"),
    "gelu": _function("Gelu"),
    "global": _global_pool,
    "greatest": _images(_reduced("ReduceMax")),
    "hardsigmoid": _function("HardSigmoid"),
    "hardswish": _function("HardSwish"),
    "layer_norm": _layer_norm,
    "leaky": _function("LeakyRelu", alpha=0.1),
    "linear": _linear,
    "matmul": _matmul,
    "max": _pool("MaxPool", keeps=True),
    "mean": _images(_reduced("ReduceMean")),
    "moved": _images(_moved),
    "mul": _pair("Mul"),
    "mul_constant": _with_constant("Mul"),
    "nearest": _images(_nearest),
    "pad": _images(_pad),
    "product": _images(_product),
    "relu": _function("Relu"),
    "residual": _images(_residual),
    "sigmoid": _function("Sigmoid"),
    "softmax": _softmax,
    "sub": _pair("Sub"),
    "tanh": _function("Tanh"),
    "transposed": _images(_transposed),
}

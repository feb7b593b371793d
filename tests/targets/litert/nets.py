"""Nets with the grids that LiteRT prescribes: pools on the grid of their input, functions with a fixed range."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tests.twin.builder import Builder, Net, Style, T
from tests.twin.nets import SMALL, conv, image, linear, small_net

__all__ = ["LITE", "lite_net"]

f32 = np.float32


def _fixed(kind: str, scale: float, code: int, **attributes: Any) -> Callable[[Builder], T]:
    """An activation function whose output has a prescribed scale and (int8) zero point."""

    def build(b: Builder) -> T:
        x = b.input("x", b.style.batch, 16, 10, 10, spread=0.05)
        return _prescribed(b, b.float_op(kind, x, **attributes), scale, code)

    return build


def _prescribed(b: Builder, made: T, scale: float, code: int) -> T:
    """On the grid of the (int8) scale and zero point, or on the one that the format has for 16 bits."""
    if b.style.activation == "int16":
        scale, code = 1 / 2**15, 0
    return b.on_grid(made.name, made.value, f32(scale), code + (128 if b.style.activation == "uint8" else 0))


def _softmax(spread: float) -> Callable[[Builder], T]:
    def build(b: Builder) -> T:
        x = b.input("x", b.style.batch * 200, 12, spread=spread)
        return _prescribed(b, b.float_op("Softmax", x, axis=-1), 1 / 256, -128)

    return build


def _same_grid(kind: str, **attributes: Any) -> Callable[[Builder], T]:
    def build(b: Builder) -> T:
        x = image(b)
        return b.quantized(b.float_op(kind, x, **attributes), like=x)

    return build


def _relu6(b: Builder) -> T:
    """Clipped at six, which LiteRT has an activation for."""
    x = conv(b, image(b), 24, grid=False)
    low, high = b.name("low"), b.name("high")
    x = b.float_op("Clip", x, low, high, constants={low: np.array(0, f32), high: np.array(6, f32)})
    return b.quantized(x, relu=True)


def _clipped(b: Builder) -> T:
    """Clipped at a number that LiteRT has no activation for, in the middle of the grid."""
    x = conv(b, image(b), 24, grid=False)
    low, high = b.name("low"), b.name("high")
    top = float(x.value.abs().quantile(0.6))
    x = b.float_op("Clip", x, low, high, constants={low: np.array(0, f32), high: np.array(top, f32)})
    return b.on_grid(x.name, x.value, b.any_scale(top / 100, top / 90), b.zero_point(relu=True))


def _flatten(b: Builder) -> T:
    """The order of channels last reaches a linear layer."""
    x = conv(b, image(b, size=4), 8, then="Relu")
    x = b.quantized(b.float_op("Flatten", x), like=x)
    return linear(b, x, 10)


def _concat_moved(b: Builder) -> T:
    """Grids that change between operations which only move values."""
    x = image(b)
    y = b.quantized(b.float_op("MaxPool", x, kernel_shape=[2, 2], strides=[2, 2]))
    z = b.quantized(b.float_op("Transpose", y, perm=[0, 1, 3, 2]))
    return b.quantized(b.float_op("Concat", z, y, axis=1))


def _pixel_shuffle(b: Builder) -> T:
    x = image(b)
    return b.quantized(b.float_op("DepthToSpace", x, blocksize=2, mode="CRD"), like=x)


def _depthwise_multiplier(b: Builder) -> T:
    return conv(b, image(b, channels=8), 24, group=8)


def _relu_on_a_tie(b: Builder) -> T:
    """The ratio of the two scales is 42.5 / 19 and 85.5 / 38 up to rounding: in float32 a tie, in float64 none."""
    x = b.input("x", b.style.batch, 16, 10, 10, spread=0.02888728864490986)
    made = b.float_op("Relu", x)
    return b.on_grid(made.name, made.value, f32(0.012914317660033703), b.zero_point(relu=True))


LITE: dict[str, Callable[[Builder], T]] = {
    "sigmoid_fixed": _fixed("Sigmoid", 1 / 256, -128),
    "tanh_fixed": _fixed("Tanh", 1 / 128, 0),
    "softmax_fixed": _softmax(0.05),
    "softmax_flat": _softmax(0.005),
    "avgpool_same": _same_grid("AveragePool", kernel_shape=[2, 2], strides=[2, 2]),
    "avgpool_3x3_same": _same_grid("AveragePool", kernel_shape=[3, 3], strides=[1, 1], pads=[1] * 4),
    "avgpool_whole": _same_grid("AveragePool", kernel_shape=[10, 10], strides=[1, 1]),
    "conv_relu6_true": _relu6,
    "conv_clipped": _clipped,
    "flatten": _flatten,
    "concat_moved": _concat_moved,
    "pixel_shuffle": _pixel_shuffle,
    "depthwise_multiplier": _depthwise_multiplier,
    "relu_on_a_tie": _relu_on_a_tie,
}


def lite_net(kind: str, style: Style) -> Net:
    if kind in SMALL:
        return small_net(kind, style)
    builder = Builder(style)
    builder.output(LITE[kind](builder))
    return builder.net()

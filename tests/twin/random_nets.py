"""Random small nets: operations in a row and beside each other, with attributes, sizes and grids at their ends."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from tests.twin.builder import Array, Builder, Net, Style, T
from tests.twin.nets import linear

__all__ = ["random_net"]

_CHANNELS = (1, 2, 3, 5, 7, 8, 13, 16, 17, 24, 33)
_MOST = 20_000  # elements of a tensor


def random_net(seed: int, kinds: Sequence[str], **style: Any) -> Net:
    """One to five operations of `kinds`; `style` as `Style`, what it leaves out is random."""
    random = np.random.default_rng(seed)
    scales = ("random", "tie", "pot")[seed % 3]
    chosen: dict[str, Any] = {
        "scales": scales,
        "per_channel": bool(random.random() < 0.7),
        "bias": str(random.choice(["int32", "float", "none"], p=[0.7, 0.15, 0.15])),
        "batch": int(random.integers(1, 4)),
        "seed": seed,
    }
    b = _Extreme(replace(Style(), **{**chosen, **style}))
    sizes = [int(size) for size in random.integers(1, 13, size=2)]
    made = [b.input("x", b.style.batch, int(random.choice(_CHANNELS)), *sizes)]
    made.append(_conv(b, made[0], made))
    for _ in range(int(random.integers(1, 6))):
        x = made[int(random.integers(len(made)))] if b.chance(0.4) else made[-1]
        found = _MAKERS[str(random.choice(kinds))](b, x, made)
        if found.value.numel() > _MOST or float(found.value.std(correction=0)) == 0 or float(found.scale or 0) == 0:
            break  # too large, or nothing but one number
        made.append(found)
    for tensor in dict.fromkeys([*made[1:-1], made[-1]]):
        if tensor is made[-1] or b.chance(0.15):
            b.output(tensor)
    return _alive(b.net())


class _Extreme(Builder):
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
            codes[: len(codes) // 2] = self.random.choice([0, 127, -127])
        return codes

    def numbers(self, low: int, high: int, count: int) -> list[int]:
        return [int(number) for number in self.random.integers(low, high, size=count)]


def _conv(b: _Extreme, x: T, _made: list[T]) -> T:
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
    def make(b: _Extreme, x: T, made: list[T]) -> T:
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


def _global_pool(b: _Extreme, x: T, made: list[T]) -> T:
    if x.value.ndim != 4:
        return _linear(b, x, made)
    assert x.scale is not None
    mean = b.float_op("GlobalAveragePool", x)
    return b.quantized(mean, unit=float(x.scale) / float(np.prod(x.value.shape[2:])))


def _pair(kind: str) -> Any:
    def make(b: _Extreme, x: T, made: list[T]) -> T:
        assert x.scale is not None
        alike = [each for each in made if each.value.shape == x.value.shape and each is not x]
        y = alike[0] if alike else b.input(b.name("y"), *x.value.shape, spread=float(x.scale) * 3)
        assert y.scale is not None
        result = b.float_op(kind, *((x, y) if b.chance(0.5) else (y, x)))
        relu = b.chance(0.4)
        unit = float(x.scale * y.scale) if kind == "Mul" else float(x.scale)
        return b.quantized(b.activation("Relu", result) if relu else result, relu=relu, unit=unit)

    return make


def _concat(b: _Extreme, x: T, made: list[T]) -> T:
    assert x.scale is not None
    alike = [each for each in made if each.value.shape[2:] == x.value.shape[2:] and each.value.ndim == x.value.ndim]
    other = alike[int(b.random.integers(len(alike)))]
    return b.quantized(b.float_op("Concat", x, other, axis=1), unit=float(x.scale))


def _linear(b: _Extreme, x: T, _made: list[T]) -> T:
    if x.value.ndim != 2:
        x = b.quantized(b.float_op("Flatten", x), like=x)
    return linear(b, x, int(b.random.integers(1, 30)), then="Relu" if b.chance(0.5) else None)


def _function(kind: str, **attributes: Any) -> Any:
    return lambda b, x, _made: b.quantized(b.float_op(kind, x, **attributes), relu=kind == "Relu")


_MAKERS: dict[str, Any] = {
    "average": _pool("AveragePool", keeps=True),
    "average_anew": _pool("AveragePool", keeps=False),
    "add": _pair("Add"),
    "concat": _concat,
    "conv": _conv,
    "global": _global_pool,
    "leaky": _function("LeakyRelu", alpha=0.1),
    "linear": _linear,
    "max": _pool("MaxPool", keeps=True),
    "mul": _pair("Mul"),
    "relu": _function("Relu"),
}


def _alive(net: Net) -> Net:
    """Without what no output depends on."""
    graph, wanted, kept = net.model.graph, {value.name for value in net.model.graph.output}, []
    for node in reversed(graph.node):
        if wanted.intersection(node.output):
            kept.append(node)
            wanted.update(node.input)
    for part, left in (
        (graph.node, kept[::-1]),
        (graph.input, [value for value in graph.input if value.name in wanted]),
        (graph.initializer, [value for value in graph.initializer if value.name in wanted]),
    ):
        copies = [type(each).FromString(each.SerializeToString()) for each in left]
        del part[:]
        part.extend(copies)
    return Net(net.model, {name: value for name, value in net.feeds.items() if name in wanted})

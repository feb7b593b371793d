"""Nets for torch's kernels beyond those that every arithmetic has, and the engine's tensors for any net."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from detent import cpus
from detent.ir import Package
from detent.targets import BACKENDS
from detent.targets.base import Deployment
from detent.targets.torch_native.engine import Kernels, TorchNative
from detent.targets.torch_native.writer import FORMAT
from detent.twin import Arithmetic, Twin
from tests.twin.nets import SMALL, Builder, Net, Style, T, add, conv, image

Array = npt.NDArray[Any]

ONEDNN_IS_BOUNDED = "ONEDNN_MAX_CPU_ISA" in os.environ and not cpus.here().saturates
"""Torch takes oneDNN then, because the CPU has VNNI, and oneDNN saturates all the same: its twin does not know that
(`TorchArithmetic.local_cpu`)."""


def package(net: Net, folder: Path) -> Package:
    deployment = Deployment(name="net", backend=BACKENDS["torch_x86"], model=net.model, tensors=())
    files = {"model.onnx": net.model.SerializeToString(), **FORMAT.write(deployment).files}
    for name, content in files.items():
        (folder / name).write_bytes(content)
    return Package(folder, {"files": dict.fromkeys(files, "")})


def differing(net: Net, folder: Path, kernels: Kernels, arithmetic: Arithmetic) -> tuple[dict[str, int], int]:
    """For each tensor that the engine and the twin have different values of, how many; and the number of all values."""
    engine = TorchNative.load(package(net, folder), kernels=kernels).tensors(net.feeds)
    twin = Twin(net.model, arithmetic).tensors(net.feeds)
    wrong = {name: int((value != engine[name]).sum()) for name, value in twin.items()}
    return {name: count for name, count in wrong.items() if count}, sum(value.size for value in twin.values())


def net_of(kind: str, style: Style) -> Net:
    builder = Builder(style)
    builder.output({**SMALL, **TORCH}[kind](builder))
    return builder.net()


def _second(b: Builder, x: T) -> T:
    assert x.scale is not None
    return b.input("y", *x.value.shape, spread=float(x.scale) * 3 if b.style.scales == "tie" else None)


def _same_grid(kind: str, **attributes: Any) -> Callable[[Builder], T]:
    """37 channels: two whole blocks of 16 and some that fill none."""

    def build(b: Builder) -> T:
        x = image(b, channels=37)
        return b.quantized(b.float_op(kind, x, **attributes), like=x)

    return build


def _fixed(kind: str, scale: float, zero_point: int, **attributes: Any) -> Callable[[Builder], T]:
    def build(b: Builder) -> T:
        made = b.float_op(kind, image(b, channels=13, size=7), **attributes)
        return b.on_grid(made.name, made.value, np.float32(scale), zero_point)

    return build


def _odd_add(b: Builder) -> T:
    x = image(b, "x", channels=5, size=7)
    return add(b, x, _second(b, x))


def _odd_concat(axis: int) -> Callable[[Builder], T]:
    def build(b: Builder) -> T:
        x = image(b, "x", channels=37)
        assert x.scale is not None
        return b.quantized(b.float_op("Concat", x, _second(b, x), axis=axis), unit=float(x.scale))

    return build


def _gate(b: Builder) -> T:
    x = image(b)
    gate = b.input("gate", b.style.batch, 16, 1, 1)
    assert x.scale is not None
    assert gate.scale is not None
    return b.quantized(b.float_op("Mul", x, gate), unit=float(x.scale * gate.scale))


def _odd_leaky(b: Builder) -> T:
    x = image(b, channels=13, size=7)
    assert x.scale is not None
    return b.quantized(b.float_op("LeakyRelu", x, alpha=0.1), unit=float(x.scale))


def _depthwise(channels: int, outputs: int, kernel: int, stride: int = 1) -> Callable[[Builder], T]:
    return lambda b: conv(b, image(b, channels=channels, size=11), outputs, kernel, stride=stride, group=channels)


TORCH: dict[str, Callable[[Builder], T]] = {
    "avgpool_same": _same_grid("AveragePool", kernel_shape=[3, 3], strides=[2, 2]),
    "avgpool_same_padded": _same_grid(
        "AveragePool", kernel_shape=[5, 5], strides=[1, 1], pads=[2] * 4, count_include_pad=1
    ),
    "gap_same": _same_grid("GlobalAveragePool"),
    "relu_same": _same_grid("Relu"),
    "sigmoid_fixed": _fixed("Sigmoid", 1 / 256, 0),
    "tanh_fixed": _fixed("Tanh", 1 / 128, 128),
    "hardsigmoid_fixed": _fixed("HardSigmoid", 1 / 256, 0, alpha=1 / 6),
    "add_odd": _odd_add,
    "concat_odd": _odd_concat(1),
    "concat_rows": _odd_concat(2),
    "mul_gate": _gate,
    "leaky_odd": _odd_leaky,
    "depthwise_5x5": _depthwise(32, 32, 5),
    "depthwise_7x7": _depthwise(16, 16, 7),
    "depthwise_twice": _depthwise(16, 32, 3),
    "depthwise_12": _depthwise(12, 12, 3),
    "depthwise_strided": _depthwise(24, 24, 3, 2),
}

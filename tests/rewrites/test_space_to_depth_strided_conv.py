"""Convolutions of few channels with stride 2 that are written on blocks of pixels give the same integers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from detent.ir import Network
from detent.targets.rewrites import legalize
from tests.rewrites.quantized_op import RELU, Writing, X, Y, run, types

REWRITE = ("space_to_depth_strided_conv",)
IN_BLOCKS = ["Transpose", "Reshape", "Transpose", "Reshape", "Transpose", "Conv"]


def network(
    shape: tuple[int | str, ...] = ("n", 3, 14, 10),
    kernel: tuple[int, ...] = (7, 7),
    *,
    relu: bool = False,
    per_channel: bool = True,
    **attributes: Any,
) -> Network:
    draw, w = np.random.default_rng(0), Writing()
    group = attributes.get("group", 1)
    codes = draw.integers(-127, 128, (6, int(shape[1]) // group, *kernel)).astype(np.int8)
    scale = 2.0 ** draw.integers(-9, -6, 6) if per_channel else np.array(2.0**-7)
    bias = w.coded("stem.bias", draw.integers(-2000, 2000, 6).astype(np.int32), scale * X[1], 0)
    inputs = [w.on_grid(*X), w.coded("stem.weight", codes, scale, 0), bias]
    made = w.node("Conv", inputs, "stem" if relu else "y", **{"strides": [2, 2], **attributes})
    if relu:
        w.node("Relu", [made], "y")
    return w.network(shape, w.on_grid(*(RELU if relu else Y)))


GEOMETRIES: dict[str, dict[str, Any]] = {
    "7x7": {"pads": [3] * 4},
    "3x3": {"kernel": (3, 3), "pads": [1] * 4},
    "3x3, padded behind": {"kernel": (3, 3), "pads": [0, 0, 1, 1]},
    "3x3, not padded": {"kernel": (3, 3), "auto_pad": "NOTSET"},
    "5x4, padded unevenly": {"kernel": (5, 4), "pads": [2, 0, 1, 3]},
    "2x2": {"kernel": (2, 2)},
    "one channel, one scale": {"shape": (2, 1, 8, 12), "kernel": (3, 3), "pads": [1] * 4, "per_channel": False},
}


@pytest.mark.parametrize("relu", [False, True])
@pytest.mark.parametrize("geometry", GEOMETRIES.values(), ids=GEOMETRIES.keys())
def test_the_same_integers(geometry: dict[str, Any], relu: bool) -> None:
    before = network(**geometry, relu=relu)
    after = legalize(before, REWRITE)
    assert types(after) == [*IN_BLOCKS, *(["Relu"] if relu else [])]
    shape = [2 if isinstance(size, str) else size for size in geometry.get("shape", ("n", 3, 14, 10))]
    x = np.random.default_rng(1).normal(0, 4, shape).astype(np.float32)
    wanted = run(before, x)
    assert np.unique(wanted).size > 12
    np.testing.assert_array_equal(run(after, x), wanted)


@pytest.mark.parametrize(
    "model",
    [
        network(pads=[3] * 4, strides=[1, 1]),
        network(pads=[3] * 4, strides=[2, 1]),
        network(("n", 3, 13, 10), pads=[3] * 4),
        network(("n", 4, 14, 10), pads=[3] * 4),
        network(("n", 3, "h", 10), pads=[3] * 4),
        network(pads=[3] * 4, dilations=[2, 2]),
        network(pads=[3] * 4, group=3),
        network(kernel=(1, 1)),
        network(auto_pad="SAME_UPPER"),
    ],
    ids=["stride 1", "strides 2, 1", "odd", "four channels", "unknown", "dilated", "groups", "1x1", "auto pad"],
)
def test_left_alone(model: Network) -> None:
    assert types(legalize(model, REWRITE)) == ["Conv"]

"""Transposed convolutions that are written as convolutions give the same integers, and others are left alone."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from detent.ir import Layout, Network, Operand, Output, StoredAs
from detent.targets.rewrites import legalize
from tests.rewrites.quantized_op import RELU, Writing, X, Y, only, run, types

REWRITE = ("conv_transpose_as_conv",)


def network(
    shape: tuple[int | str, ...] = ("n", 6, 5, 7),
    outputs: int = 4,
    kernel: tuple[int, ...] = (3, 3),
    *,
    relu: bool = False,
    bias: bool = True,
    per_channel: bool = True,
    **attributes: Any,
) -> Network:
    draw, w = np.random.default_rng(0), Writing()
    groups = attributes.get("group", 1)
    codes = draw.integers(-127, 128, (shape[1], outputs // groups, *kernel)).astype(np.int8)
    scale = 2.0 ** draw.integers(-9, -6, outputs // groups) if per_channel else np.array(2.0**-7)
    inputs = [w.on_grid(*X), w.coded("up.weight", codes, scale, 1)]
    if bias:
        held = draw.integers(-2000, 2000, outputs).astype(np.int32)
        inputs.append(w.coded("up.bias", held, np.tile(scale, groups) * X[1] if per_channel else scale * X[1], 0))
    made = w.node("ConvTranspose", inputs, "up" if relu else "y", kernel_shape=kernel, **attributes)
    if relu:
        w.node("Relu", [made], "y")
    return w.network(shape, w.on_grid(*(RELU if relu else Y)))


def feed(shape: tuple[int | str, ...]) -> np.ndarray:
    sizes = [2 if isinstance(size, str) else size for size in shape]
    return np.random.default_rng(1).normal(0, 4, sizes).astype(np.float32)


GEOMETRIES: dict[str, dict[str, Any]] = {
    "2x2, stride 2": {"kernel": (2, 2), "strides": [2, 2]},
    "3x3, stride 2": {"strides": [2, 2], "pads": [1] * 4, "output_padding": [1, 1]},
    "4x4, stride 2": {"kernel": (4, 4), "strides": [2, 2], "pads": [1] * 4},
    "2x2, stride 2, one more": {"kernel": (2, 2), "strides": [2, 2], "output_padding": [1, 1]},
    "2x2, stride 3": {"kernel": (2, 2), "strides": [3, 3]},
    "3x2, strides 1 and 2": {"kernel": (3, 2), "strides": [1, 2], "pads": [1, 0, 1, 1]},
    "5x5, stride 1": {"kernel": (5, 5), "pads": [2] * 4},
    "1x1, stride 1, cut": {"kernel": (1, 1), "pads": [1, 0, 1, 2]},
    "dilated": {"strides": [2, 2], "dilations": [2, 3], "pads": [1] * 4},
    "grouped": {"strides": [2, 2], "pads": [1] * 4, "group": 2},
    "depthwise": {"shape": ("n", 4, 5, 7), "kernel": (2, 2), "strides": [2, 2], "group": 4},
    "one scale": {"strides": [2, 2], "per_channel": False},
    "no bias": {"strides": [2, 2], "bias": False},
    "1-d": {"shape": ("n", 6, 9), "kernel": (4,), "strides": [3], "pads": [1, 1]},
    "3-d": {"shape": (2, 4, 3, 4, 5), "kernel": (3, 2, 2), "strides": [2, 2, 1]},
}


@pytest.mark.parametrize("relu", [False, True])
@pytest.mark.parametrize("geometry", GEOMETRIES.values(), ids=GEOMETRIES.keys())
def test_the_same_integers(geometry: dict[str, Any], relu: bool) -> None:
    before = network(**geometry, relu=relu)
    after = legalize(before, REWRITE)
    x = feed(geometry.get("shape", ("n", 6, 5, 7)))
    wanted = run(before, x)
    assert np.unique(wanted).size > 12
    assert "ConvTranspose" not in types(after)
    np.testing.assert_array_equal(run(after, x), wanted)


def test_no_moves_without_a_stride() -> None:
    assert types(legalize(network(kernel=(5, 5), pads=[2] * 4), REWRITE)) == ["Conv"]


def test_a_stride_of_two() -> None:
    """Every second element of the kernel, turned round, is the kernel of a phase."""
    after = legalize(network(shape=(1, 1, 2, 2), outputs=1, kernel=(3, 3), strides=[2, 2]), REWRITE)
    assert types(after) == ["Conv", "Transpose", "Reshape", "Transpose", "Reshape", "Slice", "Transpose"]
    kernel = np.random.default_rng(0).integers(-127, 128, (1, 1, 3, 3))[0, 0]
    phases = after.constants["up.weight_phases"][:, 0]
    assert phases[0].tolist() == kernel[::-2, ::-2].tolist()
    assert phases[3].tolist() == [[0, 0], [0, kernel[1, 1]]]
    assert after.stored_as["up.weight_phases"] == StoredAs("up.weight", Layout.PHASES)
    assert "up.weight" not in after.constants


def test_each_phase_has_the_scales_of_its_channels() -> None:
    before = network(strides=[2, 2])
    scales = [
        only(before, "ConvTranspose").inputs[1].encoding,
        only(legalize(before, REWRITE), "Conv").inputs[1].encoding,
    ]
    assert scales[1].scale.tolist() == scales[0].scale.tolist() * 4
    assert (scales[0].axis, scales[1].axis) == (1, 0)


def _read_in_float() -> Network:
    made = network(strides=[2, 2])
    return replace(made, outputs=(*made.outputs, Output("y", Operand("y"))))


def _float_weights() -> Network:
    made = network(strides=[2, 2], bias=False)
    conv = only(made, "ConvTranspose")
    weight = Operand("up.weight")
    constants = {"up.weight": made.constants["up.weight"].astype(np.float32)}
    op = replace(conv, inputs=(conv.inputs[0], weight))
    return replace(made, ops=(op,), constants=constants, coded=frozenset())


@pytest.mark.parametrize(
    "model",
    [
        network(shape=("n", 6, "h", 7), strides=[2, 2]),
        network(strides=[2, 2], auto_pad="SAME_UPPER"),
        network(strides=[2, 2], output_shape=[11, 15]),
        _read_in_float(),
        _float_weights(),
    ],
    ids=["unknown-height", "auto-pad", "output-shape", "read-in-float", "float-weights"],
)
def test_left_alone(model: Network) -> None:
    assert types(legalize(model, REWRITE)) == ["ConvTranspose"]

"""Average pools as the HTP computes them rightly give the same integers, or are refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from detent.errors import DeployError
from detent.ir import Network
from detent.targets.rewrites import legalize
from tests.rewrites.quantized_op import RELU, Writing, X, Y, only, run

REWRITE = ("avgpool_pad_even_kernels",)


def network(size: tuple[int, int], *, relu: bool = False, **attributes: Any) -> Network:
    w = Writing()
    w.node("AveragePool", [w.on_grid(*X)], "pool" if relu else "y", **attributes)
    if relu:
        w.node("Relu", ["pool"], "y")
    return w.network(("n", 3, *size), w.on_grid(*(RELU if relu else Y)))


def images(size: tuple[int, int]) -> np.ndarray:
    return np.random.default_rng(1).normal(0, 4, (2, 3, *size)).astype(np.float32)


def pads(model: Network) -> list[int]:
    found: list[int] = only(model, "AveragePool").attribute("pads")
    return found


@pytest.mark.parametrize("relu", [False, True])
@pytest.mark.parametrize(
    ("size", "kernel", "behind"),
    [((8, 12), (4, 4), [0, 0, 1, 1]), ((8, 11), (4, 4), [0, 0, 1, 0]), ((17, 6), (8, 6), [0, 0, 1, 1])],
    ids=["whole", "one more column would be another window", "not square"],
)
def test_even_windows_side_by_side_have_padding_that_none_reaches(
    size: tuple[int, int], kernel: tuple[int, int], behind: list[int], relu: bool
) -> None:
    before = network(size, relu=relu, kernel_shape=kernel, strides=kernel)
    after = legalize(before, REWRITE)
    assert pads(after) == behind
    np.testing.assert_array_equal(run(after, images(size)), run(before, images(size)))


@pytest.mark.parametrize(
    ("kernel", "strides"), [((2, 2), (2, 2)), ((5, 5), (5, 5)), ((4, 4), (2, 2)), ((4, 2), (4, 2)), ((7, 7), (4, 4))]
)
def test_others_without_padding_stay(kernel: tuple[int, int], strides: tuple[int, int]) -> None:
    before = network((16, 16), kernel_shape=kernel, strides=strides)
    assert legalize(before, REWRITE) is before


def test_even_windows_that_leave_no_room_behind_them_are_refused() -> None:
    with pytest.raises(DeployError, match="does not fit behind the last window"):
        legalize(network((7, 11), kernel_shape=[4, 4], strides=[4, 4]), REWRITE)


NEAR = {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1] * 4}


@pytest.mark.parametrize(
    "changed",
    [
        {},
        {"count_include_pad": 1},
        {"strides": [1, 1]},
        {"kernel_shape": [2, 2]},
        {"strides": [3, 3], "pads": [0, 0, 1, 1]},
    ],
    ids=["not counted", "counted", "stride 1", "2x2 side by side", "only behind"],
)
def test_padding_stays_where_it_does_no_harm(changed: dict[str, Any]) -> None:
    before = network((10, 10), **{**NEAR, **changed})
    assert legalize(before, REWRITE) is before


@pytest.mark.parametrize(
    "changed",
    [
        {"strides": [3, 3]},
        {"kernel_shape": [5, 5], "strides": [3, 3]},
        {"kernel_shape": [2, 2], "count_include_pad": 1},
    ],
    ids=["side by side", "3 apart", "2x2 counted"],
)
def test_other_padding_is_refused(changed: dict[str, Any]) -> None:
    with pytest.raises(DeployError, match="wrongly where they reach into padding"):
        legalize(network((10, 10), **{**NEAR, **changed}), REWRITE)


@pytest.mark.parametrize(("mode", "refused"), [("constant", True), ("reflect", False)], ids=["one number", "mirrored"])
def test_windows_side_by_side_behind_a_pad_are_refused(mode: str, refused: bool) -> None:
    w = Writing()
    around = w.constant("around", np.array([0, 0, 1, 1, 0, 0, 1, 1]))
    padded = w.node("Pad", [w.on_grid(*X), around], "padded", mode=mode)
    w.node("AveragePool", [w.on_grid(padded, *X[1:])], "y", kernel_shape=[2, 2], strides=[2, 2])
    model = w.network(("n", 3, 10, 10), w.on_grid(*Y))
    if not refused:
        assert legalize(model, REWRITE) is model
        return
    with pytest.raises(DeployError, match="reach into padding"):
        legalize(model, REWRITE)

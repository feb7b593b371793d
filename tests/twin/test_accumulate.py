"""Sums of products are exact, whichever way they are taken."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from detent.ir import Encoding, Network, Op, Operand
from detent.twin.accumulate import EXACT, accumulator, bias_codes, bias_values, matmul_accumulate, ranges_within

Array = npt.NDArray[Any]


def layer(kind: str, weights: Array, x_zero: int = 0, **attributes: Any) -> tuple[Network, Op]:
    """A weighted operation on uint8 data with int8 weights."""
    data = Encoding(np.float32(0.1), np.int64(x_zero), "uint8")
    weight = Encoding(np.float32(0.02), np.int64(0), "int8")
    op = Op(kind, "layer", (Operand("x", data), Operand("w", weight)), ("y",), attributes)
    return Network({}, (), (op,), {"w": weights}, frozenset({"w"}), {}, 21), op


def convolved(x: Array, w: Array, stride: int = 1) -> Array:
    """A plain loop over the output, no padding."""
    size = (x.shape[2] - w.shape[2]) // stride + 1
    found = np.zeros((x.shape[0], w.shape[0], size, size), np.int64)
    for i in range(size):
        for j in range(size):
            part = x[:, None, :, i * stride : i * stride + w.shape[2], j * stride : j * stride + w.shape[3]]
            found[:, :, i, j] = (part * w[None]).sum((2, 3, 4))
    return found


@given(
    channels=st.integers(1, 40),
    size=st.integers(1, 3),
    zero=st.integers(0, 255),
    most=st.sampled_from([1, 30, 127]),
    seed=st.integers(0, 1000),
)
def test_convolutions_are_exact(channels: int, size: int, zero: int, most: int, seed: int) -> None:
    random = np.random.default_rng(seed)
    weights = random.integers(-most, most + 1, size=(3, channels, size, size))
    codes = random.integers(0, 256, size=(2, channels, 4, 4))
    bias = random.integers(-(2**20), 2**20, size=3)
    graph, op = layer("Conv", weights, zero)
    sums = accumulator(graph, op, bias)
    assert sums is not None
    result = sums(torch.from_numpy(codes).float())
    expected = convolved(codes - zero, weights) + bias.reshape(1, 3, 1, 1)
    assert np.array_equal(result.numpy(), expected)


def extreme(channels: int) -> tuple[Array, Array]:
    """All weights and codes as large as they get: the sum is the bound."""
    return np.full((2, channels, 3, 3), 127), np.full((1, channels, 3, 3), 255)


@pytest.mark.parametrize(
    ("channels", "dtype"),
    [(57, torch.float32), (58, torch.float64), (512, torch.float64)],
    ids=["at-once", "cut", "many"],
)
def test_the_greatest_sums_are_exact(channels: int, dtype: torch.dtype) -> None:
    """57 * 9 * 255 * 127 is just below 2**24 and 58 times that above it."""
    weights, codes = extreme(channels)
    graph, op = layer("Conv", weights)
    sums = accumulator(graph, op)
    assert sums is not None
    result = sums(torch.from_numpy(codes).float())
    assert result.dtype == dtype
    assert (channels * 9 * 255 * 127 < EXACT) == (dtype == torch.float32)
    assert result.unique().tolist() == [channels * 9 * 255 * 127]


def test_float32_at_once_would_be_wrong() -> None:
    """What the cutting is for: an odd sum above 2**24 is no float32."""
    weights, codes = extreme(80)
    codes[0, 0, 0, 0] = 254
    graph, op = layer("Conv", weights)
    sums = accumulator(graph, op)
    assert sums is not None
    expected = 80 * 9 * 255 * 127 - 127
    assert expected % 2 == 1
    assert sums(torch.from_numpy(codes).float()).unique().tolist() == [expected]
    assert float(np.float32(expected)) != expected


def test_a_large_bias_counts_towards_the_bound() -> None:
    graph, op = layer("Conv", np.full((1, 1, 1, 1), 127))
    sums = accumulator(graph, op, np.array([EXACT + 1]))
    assert sums is not None
    assert sums(torch.ones(1, 1, 1, 1)).item() == EXACT + 128


@pytest.mark.parametrize("groups", [1, 4, 16], ids=["dense", "grouped", "depthwise"])
def test_groups(groups: int) -> None:
    random = np.random.default_rng(0)
    weights = random.integers(-127, 128, size=(16, 16 // groups, 3, 3))
    codes = random.integers(0, 256, size=(1, 16, 5, 5))
    graph, op = layer("Conv", weights, 7, group=groups)
    sums = accumulator(graph, op)
    assert sums is not None
    each = 16 // groups
    parts = [
        convolved(codes[:, g * each : (g + 1) * each] - 7, weights[g * each : (g + 1) * each]) for g in range(groups)
    ]
    assert np.array_equal(sums(torch.from_numpy(codes).float()).numpy(), np.concatenate(parts, axis=1))


@pytest.mark.parametrize(
    ("kind", "shape", "attributes"),
    [("Gemm", (6, 900), {"transB": 1}), ("Gemm", (900, 6), {}), ("MatMul", (900, 6), {})],
    ids=["gemm-transposed", "gemm", "matmul"],
)
def test_matrix_products(kind: str, shape: tuple[int, int], attributes: dict[str, int]) -> None:
    random = np.random.default_rng(1)
    weights, codes = random.integers(-127, 128, size=shape), random.integers(0, 256, size=(5, 900))
    graph, op = layer(kind, weights, 100, **attributes)
    sums = accumulator(graph, op, np.arange(6))
    assert sums is not None
    flat = weights.T if attributes.get("transB") else weights
    assert np.array_equal(sums(torch.from_numpy(codes).float()).numpy(), (codes - 100) @ flat + np.arange(6))
    assert sums.weights.shape == (6, 900)


def test_scales_are_products_in_float32() -> None:
    weights = np.ones((2, 1, 1, 1), np.int64)
    data = Encoding(np.float32(0.1), np.int64(0), "uint8")
    weight = Encoding(np.array([0.3, 0.7], np.float32), np.zeros(2, np.int64), "int8", axis=0)
    op = Op("Conv", "layer", (Operand("x", data), Operand("w", weight)), ("y",))
    sums = accumulator(Network({}, (), (op,), {"w": weights}, frozenset({"w"}), {}, 21), op)
    assert sums is not None
    assert sums.scale.tolist() == [np.float32(0.1) * np.float32(0.3), np.float32(0.1) * np.float32(0.7)]
    assert sums.channels == (1, -1, 1, 1)


@pytest.mark.parametrize(
    "change", [{"transA": 1}, {"alpha": 2.0}, {"beta": 0.5}], ids=["transposed-data", "alpha", "beta"]
)
def test_what_is_no_plain_product_is_left_alone(change: dict[str, Any]) -> None:
    graph, op = layer("Gemm", np.ones((3, 4), np.int64), transB=1, **change)
    assert accumulator(graph, replace(op, inputs=(*op.inputs, Operand("b")))) is None


def test_a_factor_of_no_bias_says_nothing() -> None:
    graph, op = layer("Gemm", np.ones((3, 4), np.int64), transB=1, beta=0.0)
    assert accumulator(graph, op) is not None


def test_two_activations() -> None:
    random = np.random.default_rng(2)
    a, b = random.integers(-255, 256, size=(2, 3, 700)), random.integers(-255, 256, size=(2, 700, 4))
    result = matmul_accumulate(torch.from_numpy(a).float(), torch.from_numpy(b).float(), 255, 255)
    assert result.dtype == torch.float64
    assert np.array_equal(result.numpy(), a @ b)


def test_biases_are_read_as_codes_and_as_numbers() -> None:
    grid = Encoding(np.array([0.5, 0.25], np.float32), np.zeros(2, np.int64), "int32", axis=0)
    op = Op("Conv", "layer", (None, None, Operand("b", grid)), ("y",))
    graph = Network({}, (), (op,), {"b": np.array([3, -8])}, frozenset({"b"}), {}, 21)
    codes, values = bias_codes(graph, op), bias_values(graph, op)
    assert codes is not None
    assert values is not None
    assert codes.tolist() == [3, -8]
    assert values.tolist() == [1.5, -2.0]
    without = Op("Conv", "layer", (None, None), ("y",))
    assert bias_codes(graph, without) is None
    assert bias_values(graph, without) is None


@given(st.lists(st.lists(st.integers(0, 20), min_size=6, max_size=6), min_size=1, max_size=4), st.integers(15, 60))
def test_ranges_hold_every_channel_once_and_stay_below_the_limit(rows: list[list[int]], limit: int) -> None:
    per_input = np.array(rows)
    ranges = ranges_within(per_input, limit)
    if ranges is None:
        assert per_input.max() >= limit
        return
    assert [index for start, stop in ranges for index in range(start, stop)] == list(range(6))
    assert all(per_input[:, start:stop].sum(axis=1).max() < limit for start, stop in ranges)

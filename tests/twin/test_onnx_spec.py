"""QDQ taken literally: against ONNX's own reference evaluator, and the roundings with literal numbers."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from onnx.reference import ReferenceEvaluator

from detent import twin
from detent.ir import Encoding, Network, Op
from detent.targets.arithmetics import ARITHMETICS
from detent.twin import Twin
from detent.twin.requantize import clamp_bounds, dequantize, float32_multiplier, fma, quantize
from tests.twin.nets import Style, small_net

KINDS = [
    "conv_relu",
    "depthwise",
    "gemm",
    "matmul",
    "add_relu",
    "mul",
    "concat",
    "avgpool",
    "maxpool",
    "gap",
    "pad",
    "moves",
]


@pytest.mark.parametrize("kind", [*KINDS, "resize_nearest", "sigmoid", "hardswish", "requantized", "branches"])
def test_within_one_unit_of_the_reference_evaluator(kind: str) -> None:
    """Its float32 sums have another order, so a code next to a tie may flip: at most 2 in 1000."""
    for style in (Style(seed=1), Style("int8", scales="tie", seed=2)):
        net = small_net(kind, style)
        (expected,) = ReferenceEvaluator(net.model).run(None, net.feeds)
        (computed,) = twin.run(net.model, net.feeds, "onnx_spec").values()
        unit = np.min(np.abs(np.diff(np.unique(expected))))
        differences = np.rint(np.abs(expected - computed) / unit)
        assert differences.max() <= 1
        assert (differences > 0).mean() <= 0.002


def test_nothing_is_fused() -> None:
    net = small_net("conv_relu")
    steps = Twin(net.model, ARITHMETICS["onnx_spec"]()).steps
    assert [step.ran_as for step in steps] == ["quantize", "float", "float", "quantize"]
    assert [op.type for step in steps for op in step.ops] == ["Conv", "Relu"]


GRID = Encoding(np.float32(0.5), np.int64(3), "uint8")


def test_ties_go_to_even_before_the_zero_point_is_added() -> None:
    values = torch.tensor([0.25, 0.75, 1.25, -0.25, -0.75, 1000.0, -1000.0])
    assert quantize(values, GRID).tolist() == [3, 5, 5, 3, 1, 255, 0]


def test_scales_along_an_axis() -> None:
    grid = Encoding(np.array([0.5, 2.0], np.float32), np.array([0, 10]), "int8", axis=1)
    codes = quantize(torch.tensor([[1.0, 1.0], [-3.0, 7.0]]), grid)
    assert codes.tolist() == [[2, 10], [-6, 14]]
    assert dequantize(codes, grid).tolist() == [[1.0, 0.0], [-3.0, 8.0]]


def test_scales_of_blocks() -> None:
    grid = Encoding(np.array([[1.0], [2.0]], np.float32), np.zeros((2, 1), np.int64), "int4", axis=0, block=2)
    assert dequantize(torch.ones(3, 1), grid).tolist() == [[1.0], [1.0], [2.0]]


@given(st.integers(0, 255), st.floats(2.0**-20, 100, width=32), st.integers(0, 255))
def test_a_code_comes_back(code: int, scale: float, zero: int) -> None:
    grid = Encoding(np.float32(scale), np.int64(zero), "uint8")
    codes = torch.tensor([float(code)])
    assert quantize(dequantize(codes, grid), grid).item() == code


@given(st.lists(st.floats(-1e4, 1e4, width=32), min_size=1, max_size=20), st.floats(2.0**-10, 10, width=32))
def test_quantizing_is_what_the_encoding_says(values: list[float], scale: float) -> None:
    grid = Encoding(np.float32(scale), np.int64(-5), "int8")
    given_values = np.array(values, np.float32)
    assert quantize(torch.from_numpy(given_values), grid).tolist() == grid.quantize(given_values).tolist()


def test_float32_multiplier_rounds_the_sum_first() -> None:
    """2**24 + 1 is no float32: the sum is rounded before it is scaled, as the engines do."""
    output = Encoding(np.float32(1.0), np.int64(0), "int32")
    requantize = float32_multiplier(np.float32(1.0), (1,), output, (-(2**30), 2**30))
    assert requantize(torch.tensor([2.0**24 + 1], dtype=torch.float64)).tolist() == [2.0**24]
    halves = float32_multiplier(np.array([0.5, 0.25], np.float32), (1, -1), GRID, (0, 255))
    assert halves(torch.tensor([[1.0, 3.0], [3.0, -6.0]])).tolist() == [[4.0, 5.0], [6.0, 0.0]]


def test_fma_rounds_once() -> None:
    """1.1 * 10 in float32 is 11.000000238, not 11: the product is not rounded before the addition."""
    third = float(np.float32(1.1))
    assert fma(torch.tensor([10.0]), third, -11.0).item() == float(np.float32(third * 10 - 11))
    assert fma(torch.tensor([10.0]), third, -11.0).item() != 0


@pytest.mark.parametrize(
    ("kinds", "bounds", "expected"),
    [
        ([], None, (0, 255)),
        (["Relu"], None, (3, 255)),
        (["Clip"], (0.0, 6.0), (3, 15)),
        (["Clip"], (-100.0, 100.0), (0, 203)),
        (["Relu", "Clip"], (-1.0, 1.0), (3, 5)),
        (["Sigmoid"], None, None),
    ],
    ids=["nothing", "relu", "relu6", "wide", "both", "other"],
)
def test_bounds_of_clipping_activations(
    kinds: list[str], bounds: tuple[float, float] | None, expected: tuple[int, int] | None
) -> None:
    attributes = {} if bounds is None else {"min": bounds[0], "max": bounds[1]}
    ops = [Op(kind, kind, (None,), (kind,), attributes if kind == "Clip" else {}) for kind in kinds]
    assert clamp_bounds(Network({}, (), (), {}, frozenset(), {}, 6), ops, GRID) == expected

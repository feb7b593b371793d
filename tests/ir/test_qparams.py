"""Encodings: how codes stand for numbers, as ONNX says."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from detent.ir import Encoding
from detent.ir.qparams import BOUNDS


def simple(scale: float = 0.5, zero_point: int = 3, dtype: str = "uint8", **more) -> Encoding:
    return Encoding(np.float32(scale), np.int64(zero_point), dtype, **more)


def test_codes_are_divided_rounded_to_even_moved_and_saturated():
    values = np.array([0.25, 0.75, -0.25, 1e9, -1e9, np.inf, -np.inf], np.float32)
    assert simple().quantize(values).tolist() == [3, 5, 3, 255, 0, 255, 0]
    assert simple(dtype="int8", zero_point=0).quantize(values).tolist() == [0, 2, 0, 127, -128, 127, -128]


def test_bounds_of_its_own_saturate_earlier():
    narrow = simple(zero_point=0, dtype="int8", qmin=-127)
    assert narrow.quantize(np.array([-1e9, 1e9])).tolist() == [-127, 127]
    assert not narrow.full
    assert simple().full


def test_real_numbers_are_scale_times_the_distance_from_the_zero_point():
    assert simple().dequantize(np.array([0, 3, 255], np.uint8)).tolist() == [-1.5, 0.0, 126.0]


def test_a_scale_without_dimensions_keeps_none():
    assert simple().scale.shape == ()
    assert simple().zero_point.shape == ()


def test_scales_along_an_axis():
    encoding = Encoding(np.array([1, 10], np.float32), np.array([0, 1]), "int8", axis=1)
    codes = np.array([[1, 2], [3, 4]])
    assert encoding.dequantize(codes).tolist() == [[1, 10], [3, 30]]
    assert np.array_equal(encoding.quantize(encoding.dequantize(codes)), codes)
    behind = Encoding(encoding.scale, encoding.zero_point, "int8", axis=-1)
    assert np.array_equal(behind.dequantize(codes), encoding.dequantize(codes))


def test_scales_in_blocks_the_last_of_which_may_be_short():
    encoding = Encoding(np.array([[1, 10]], np.float32), np.zeros((1, 2)), "int4", axis=1, block=2)
    assert encoding.dequantize(np.array([[1, 1, 1]])).tolist() == [[1, 1, 10]]


def test_the_other_way_round_a_matrix_has_its_scales_along_the_other_axis():
    plain = Encoding(np.float32(0.5), np.int64(0), "int8")
    assert plain.transposed() is plain
    rows = Encoding(np.array([1, 2], np.float32), np.zeros(2, np.int64), "int8", axis=0)
    assert rows.transposed() == Encoding(rows.scale, rows.zero_point, "int8", axis=1)
    blocks = Encoding(np.array([[1, 2]], np.float32), np.array([[3, 4]]), "uint4", axis=1, block=32)
    turned = blocks.transposed()
    assert (turned.axis, turned.scale.tolist(), turned.zero_point.tolist()) == (0, [[1], [2]], [[3], [4]])


def test_two_that_store_alike_are_equal():
    assert simple() == simple()
    assert hash(simple()) == hash(simple())
    different = [
        *(simple(scale=0.25), simple(zero_point=4), simple(dtype="int8"), simple(qmin=1)),
        Encoding(np.array([0.5], np.float32), np.array([3]), "uint8", axis=0),
    ]
    assert all(simple() != other for other in different)
    assert simple() != "uint8"


@pytest.mark.parametrize("dtype", BOUNDS)
def test_the_bounds_are_those_of_the_type(dtype):
    bits = int(dtype.lstrip("uint"))
    low, high = BOUNDS[dtype]
    assert high - low == 2**bits - 1
    assert (low == 0) == dtype.startswith("u")


@given(
    arrays(np.float32, 8, elements=st.floats(-1e4, 1e4, width=32)),
    st.floats(2.0**-10, 2.0, width=32),
    st.integers(0, 255),
)
def test_quantizing_is_idempotent_and_off_by_half_a_step(values, scale, zero_point):
    encoding = simple(scale, zero_point)
    codes = encoding.quantize(values)
    reals = encoding.dequantize(codes)
    assert np.array_equal(encoding.quantize(reals), codes)
    inside = (codes > 0) & (codes < 255)
    # Half a step, and the rounding of the division and the product.
    assert (np.abs(reals - values)[inside] <= scale * (0.5 + 1e-4)).all()

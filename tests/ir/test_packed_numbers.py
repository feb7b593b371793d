"""Numbers packed into JSON: every bit comes back, and what is no such thing is a ValueError."""

import base64
import zlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays

from detent.ir.packed_numbers import pack_numbers, unpack_numbers


def packed(shape, held: bytes = b"", **changes):
    text = base64.b64encode(zlib.compress(held)).decode("ascii")
    return {"dtype": "float32", "shape": shape, "zlib": text, **changes}


@given(arrays(np.float32, array_shapes(min_side=0), elements=st.floats(width=32)))
def test_every_bit_comes_back(numbers):
    found = unpack_numbers(pack_numbers(numbers))
    assert found.dtype == np.float32
    assert found.shape == numbers.shape
    assert found.tobytes() == numbers.tobytes()


@pytest.mark.parametrize(
    "damaged",
    [
        pytest.param(7, id="no-dict"),
        pytest.param(packed([1], bytes(4), dtype="object"), id="a-type-of-its-own"),
        pytest.param(packed([2], bytes(4)), id="too-few"),
        pytest.param(packed([1], bytes(8)), id="too-many"),
        pytest.param(packed([-1], bytes(4)), id="negative"),
        pytest.param(packed(3, bytes(4)), id="no-shape"),
        pytest.param(packed([2**70], bytes(4)), id="no-ssize"),
        pytest.param(packed([2**40], bytes(4)), id="more-than-deflate-holds"),
        pytest.param(packed([0, 2**70]), id="nothing-of-a-huge-size"),
        pytest.param(packed([1] * 100, bytes(4)), id="too-many-dimensions"),
        pytest.param(packed([1], zlib="?"), id="no-base64"),
        pytest.param(packed([1], zlib="AAAA"), id="no-deflate"),
        pytest.param(packed([1], zlib=7), id="no-text"),
    ],
)
def test_what_is_damaged_is_a_value_error(damaged):
    with pytest.raises(ValueError, match=r"packed numbers|dimension|size"):
        unpack_numbers(damaged)


def test_a_bomb_is_not_unpacked():
    with pytest.raises(ValueError, match="have 5 bytes"):
        unpack_numbers(packed([1], bytes(50_000_000)))

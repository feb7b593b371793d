"""How two computations of a tensor are compared, where numbers are infinite or none."""

from __future__ import annotations

import numpy as np
import pytest

from detent.verification.differences import Tally

INFINITE = float("inf")


@pytest.mark.parametrize(
    ("ours", "theirs", "differing", "most"),
    [
        ([1.0, -INFINITE, 2.0], [1.0, -INFINITE, 2.0], 0, 0.0),
        ([1.0, -INFINITE, 3.0], [1.0, -INFINITE, 2.0], 1, 0.5),
        ([1.0, -3e38, 2.0], [1.0, -INFINITE, 2.0], 1, INFINITE),
        ([1.0, np.nan, 2.0], [1.0, 0.0, 2.0], 1, INFINITE),
        ([1.0, np.nan, 2.0], [1.0, np.nan, 2.0], 0, 0.0),
    ],
    ids=["masked", "beside-a-mask", "almost", "undefined", "both-undefined"],
)
def test_real_numbers(ours: list[float], theirs: list[float], differing: int, most: float) -> None:
    """An infinity does not hide what differs beside it."""
    tally = Tally("twin vs engine")
    tally.compare("scores", np.array(ours, np.float32), np.array(theirs, np.float32), None)
    (found,) = tally.differences
    assert (found.differing, found.most) == (differing, most)


@pytest.mark.parametrize(("dtype", "differing"), [(np.float16, 1), (np.float32, 2)])
def test_numbers_of_16_bits_may_be_one_step_apart(dtype: type, differing: int) -> None:
    ours, theirs = np.array([1.0, 1.5, 0.5], dtype), np.array([1.0, 1.5 + 2**-10, 0.5 + 2**-8], dtype)
    tally = Tally("twin vs engine")
    tally.compare("scores", ours, theirs, None)
    (found,) = tally.differences
    assert found.differing == differing

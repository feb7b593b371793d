"""What no rounding gives, whatever the guarantee: from end to end, without a look inside."""

from __future__ import annotations

import numpy as np
import pytest

from detent.verification.ends import Ends


def scores(right: list[bool]) -> dict[str, np.ndarray]:
    """Of two classes, of which the first is right."""
    return {"y": np.array([[1.0, 0.0] if yes else [0.0, 1.0] for yes in right], np.float32)}


@pytest.mark.parametrize(("lost", "won", "holds"), [(40, 5, False), (5, 40, False), (25, 20, True), (10, 0, True)])
def test_answers_that_become_wrong_far_more_often_than_right_are_a_problem(lost: int, won: int, holds: bool) -> None:
    twin, engine = [True] * lost + [False] * won, [False] * lost + [True] * won
    ends = Ends("simulation", {"y": None})
    for part in (slice(5), slice(5, None)):  # batches are counted together
        results = {"simulation": scores(twin[part]), "twin": scores(twin[part]), "engine": scores(engine[part])}
        ends.add(results, np.zeros(len(twin[part]), np.int64))
    found = list(ends.problems())
    assert not found if holds else f"{lost:,} are right in the twin only and {won:,} in the engine only" in found[0]


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_numbers_that_are_finite_on_one_side_only_are_a_problem(value: float) -> None:
    finite, strange = np.array([1.0, 2.0]), np.array([1.0, value])
    ends = Ends("file", {"y": None})
    ends.add({"file": {"y": finite}, "twin": {"y": finite}, "engine": {"y": strange}}, None)
    said = "1 numbers are infinite or NaN on one side only"
    assert list(ends.problems()) == [f"y: twin vs engine: {said}", f"y: file vs engine: {said}"]
    same = Ends("file", {"y": None})
    same.add({who: {"y": strange} for who in ("file", "twin", "engine")}, None)
    assert not list(same.problems())

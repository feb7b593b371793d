"""The same real numbers in other schemes."""

from __future__ import annotations

import pytest
import torch

from detent.numerics import ApotGrid, IntGrid, QParams, Rounding, Scheme
from detent.retargeting.numbers import as_scheme, ends, same_numbers

U8, S8, NARROW = IntGrid(8, signed=False), IntGrid(8), IntGrid(8, narrow=True)


def qparams(zero_point: int) -> QParams:
    return QParams(torch.tensor(0.5), torch.tensor(zero_point))


def found(scheme: Scheme, zero_point: int) -> dict[tuple[str, int], int]:
    """Scheme and zero point of each other one -> how much it differs, at least."""
    seen: dict[tuple[str, int], int] = {}
    for difference, (other, its) in same_numbers((scheme, qparams(zero_point))):
        key = str(other), int(its.zero_point)
        seen[key] = min(difference, seen.get(key, difference))
    return seen


def test_a_symmetric_grid():
    assert found(Scheme(S8), 0) == {
        ("int8 symmetric per-tensor", 0): 0,
        ("int8 affine per-tensor", 0): 0,
        ("uint8 affine per-tensor", 128): 0,
        ("int8 narrow symmetric per-tensor", 0): 2,
        ("int8 narrow affine per-tensor", 0): 2,
    }


def test_a_narrow_one_has_a_code_less():
    assert found(Scheme(NARROW), 0) == {
        ("int8 narrow symmetric per-tensor", 0): 0,
        ("int8 narrow affine per-tensor", 0): 0,
        ("int8 symmetric per-tensor", 0): 1,
        ("int8 affine per-tensor", 0): 1,
        ("uint8 affine per-tensor", 128): 1,
    }


def test_numbers_from_zero_on_have_no_signed_symmetric_grid():
    assert found(Scheme(U8), 0) == {
        ("uint8 symmetric per-tensor", 0): 0,
        ("uint8 affine per-tensor", 0): 0,
        ("int8 affine per-tensor", -128): 0,
    }


def test_an_affine_grid_is_symmetric_only_with_zero_in_the_middle():
    assert ("int8 symmetric per-tensor", 0) in found(Scheme(U8, symmetric=False), 128)
    assert found(Scheme(U8, symmetric=False), 100) == {
        ("uint8 affine per-tensor", 100): 0,
        ("int8 affine per-tensor", -28): 0,
    }


def test_grids_that_are_no_integers_stay():
    assert found(Scheme(ApotGrid(4)), 0) == {("apot4 symmetric per-tensor", 0): 0}


@pytest.mark.parametrize(
    ("given", "zero_point"), [(Scheme(S8), 0), (Scheme(NARROW), 0), (Scheme(U8, symmetric=False), 37), (Scheme(U8), 0)]
)
def test_all_of_them_have_the_same_ends_but_for_a_step(given, zero_point):
    low, high = ends(given, qparams(zero_point))
    for difference, other in same_numbers((given, qparams(zero_point))):
        assert ends(*other) == (low - {0: 0, 1: 0.5, 2: -0.5}[difference], high)


def test_as_one_scheme_or_not_at_all():
    affine = Scheme(S8, symmetric=False, rounding=Rounding.HALF_UP)
    held = Scheme(U8, symmetric=False), qparams(37)
    assert as_scheme(held, affine).zero_point == -91
    assert as_scheme(held, Scheme(S8)) is None
    assert as_scheme((Scheme(S8), qparams(0)), Scheme(NARROW)) is None

"""What a method asks of a scheme: every clause for firing and for not firing."""

from dataclasses import FrozenInstanceError

import pytest

from detent.errors import SchemeError
from detent.numerics import ApotGrid, IntGrid, LogGrid, PerChannel, PerGroup, PerTensor, Requirement, Scheme

INT8 = IntGrid(8)


@pytest.mark.parametrize(
    ("requirement", "meets", "fails", "need"),
    [
        pytest.param(
            Requirement(), Scheme(INT8, False, PerGroup(1, 4), "power_of_two"), Scheme(LogGrid()),
            "a grid of kind IntGrid", id="integers-by-default",
        ),
        pytest.param(
            Requirement(grids=(LogGrid, ApotGrid)), Scheme(ApotGrid(4)), Scheme(INT8),
            "a grid of kind LogGrid or ApotGrid", id="grids",
        ),
        pytest.param(
            Requirement(granularities=(PerTensor, PerChannel)), Scheme(INT8, granularity=PerChannel(1)),
            Scheme(INT8, granularity=PerGroup(1, 4)), "granularity PerTensor or PerChannel", id="granularities",
        ),
        pytest.param(
            Requirement(symmetric=True), Scheme(INT8), Scheme(INT8, False), "a symmetric scheme", id="symmetric"
        ),
        pytest.param(
            Requirement(symmetric=False), Scheme(INT8, False), Scheme(INT8), "an affine scheme", id="affine"
        ),
        pytest.param(
            Requirement(scale="power_of_two"), Scheme(INT8, scale="power_of_two"), Scheme(INT8),
            "a power-of-two scale", id="power-of-two",
        ),
        pytest.param(
            Requirement(scale="float"), Scheme(INT8), Scheme(INT8, scale="power_of_two"), "a float scale", id="float"
        ),
        pytest.param(
            Requirement(most_bits=8), Scheme(INT8), Scheme(IntGrid(9)), "at most 8 bits", id="most-bits"
        ),
    ],
)  # fmt: skip
def test_each_clause_lets_one_scheme_pass_and_stops_another(requirement, meets, fails, need, refuses):
    requirement.check("method", meets)
    with refuses(
        SchemeError,
        asked=f"'method' with {fails}",
        found=f"it needs {need}, because its formula is made for these",
        to_do="change the scheme, or choose another method",
    ):
        requirement.check("method", fails)


def test_the_reason_is_the_method_s_own(refuses):
    only = Requirement(symmetric=True, because="it learns one threshold for both sides")
    with refuses(SchemeError, asked="'tqt'", found="because it learns one threshold for both sides", to_do="change"):
        only.check("tqt", Scheme(INT8, symmetric=False))


def test_it_is_a_frozen_value_given_by_name_only():
    assert Requirement(symmetric=True) == Requirement(symmetric=True)
    with pytest.raises(FrozenInstanceError):
        Requirement().symmetric = True
    with pytest.raises(TypeError):
        Requirement((IntGrid,))

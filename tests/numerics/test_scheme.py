"""A scheme is a value: printed, hashed, written as JSON and read back, and refused when impossible."""

import itertools
import json
import pickle
from dataclasses import FrozenInstanceError, replace

import pytest

from detent.errors import SchemeError
from detent.numerics import ApotGrid, IntGrid, LogGrid, PerChannel, PerGroup, PerTensor, Rounding, Scheme

GRIDS = {
    "int8": IntGrid(8),
    "int2": IntGrid(2),
    "int32": IntGrid(32),
    "int8-narrow": IntGrid(8, narrow=True),
    "uint4": IntGrid(4, signed=False),
}
GRANULARITIES = {
    "per-tensor": PerTensor(),
    "per-channel-0": PerChannel(0),
    "per-channel-last": PerChannel(-1),
    "per-group": PerGroup(1, 32),
}
MANY = [
    pytest.param(Scheme(grid, symmetric, granularity, scale, rounding), id="-".join(names))
    for (grid_name, grid), (granularity_name, granularity), symmetric, scale, rounding in itertools.product(
        GRIDS.items(), GRANULARITIES.items(), (True, False), ("float", "power_of_two"), Rounding
    )
    for names in [
        (grid_name, "symmetric" if symmetric else "affine", granularity_name, scale, rounding.value),
    ]
    # Every rounding once, on the first of each of the others: the full product says nothing more.
    if rounding is Rounding.HALF_EVEN or (grid_name, granularity_name) == ("int8", "per-tensor")
] + [
    pytest.param(Scheme(LogGrid()), id="log8"),
    pytest.param(Scheme(LogGrid(5, 4), granularity=PerChannel(0), rounding=Rounding.HALF_UP), id="log5-4-steps"),
    pytest.param(Scheme(ApotGrid(4), scale="power_of_two"), id="apot4-power_of_two"),
    pytest.param(Scheme(ApotGrid(4, signed=False), granularity=PerGroup(0, 2)), id="uapot4-per-group"),
]


def test_the_defaults_are_symmetric_per_tensor_float_half_even():
    assert Scheme(IntGrid(8)) == Scheme(IntGrid(8), True, PerTensor(), "float", Rounding.HALF_EVEN)


@pytest.mark.parametrize("scheme", MANY)
def test_json_brings_it_back(scheme):
    assert Scheme.from_dict(json.loads(json.dumps(scheme.to_dict()))) == scheme


@pytest.mark.parametrize("scheme", MANY)
def test_an_equal_scheme_has_an_equal_hash(scheme):
    again = pickle.loads(pickle.dumps(scheme))
    assert again == scheme
    assert hash(again) == hash(scheme)


def test_schemes_that_differ_in_any_field_differ():
    base = Scheme(IntGrid(8))
    others = [
        replace(base, grid=IntGrid(4)),
        replace(base, symmetric=False),
        replace(base, granularity=PerChannel(0)),
        replace(base, scale="power_of_two"),
        replace(base, rounding=Rounding.FLOOR),
    ]
    assert len({base, *others}) == 6


def test_the_dictionary_written_out():
    scheme = Scheme(IntGrid(4, narrow=True), True, PerGroup(1, 32), "power_of_two", Rounding.HALF_AWAY)
    assert scheme.to_dict() == {
        "grid": {"kind": "int", "bits": 4, "signed": True, "narrow": True},
        "symmetric": True,
        "granularity": {"kind": "per_group", "axis": 1, "size": 32},
        "scale": "power_of_two",
        "rounding": "half_away",
    }
    assert Scheme(LogGrid()).to_dict()["grid"] == {"kind": "log", "bits": 8, "steps": 16}
    assert Scheme(ApotGrid(4)).to_dict()["grid"] == {"kind": "apot", "bits": 4, "signed": True}
    assert Scheme(IntGrid(8)).to_dict()["granularity"] == {"kind": "per_tensor"}
    assert Scheme(IntGrid(8), granularity=PerChannel(1)).to_dict()["granularity"] == {"kind": "per_channel", "axis": 1}


def test_a_dictionary_may_leave_out_what_has_a_default():
    assert Scheme.from_dict({"grid": {"kind": "int", "bits": 8}}) == Scheme(IntGrid(8))
    given = {"grid": {"kind": "log"}, "granularity": {"kind": "per_channel"}}
    assert Scheme.from_dict(given) == Scheme(LogGrid(8, 16), granularity=PerChannel(0))


def test_reading_a_dictionary_leaves_it_as_it_was():
    data = Scheme(IntGrid(8), granularity=PerChannel(0)).to_dict()
    before = json.dumps(data)
    Scheme.from_dict(data)
    assert json.dumps(data) == before


@pytest.mark.parametrize(
    ("scheme", "text"),
    [
        pytest.param(Scheme(IntGrid(8)), "int8 symmetric per-tensor", id="int8"),
        pytest.param(Scheme(IntGrid(8, signed=False), False), "uint8 affine per-tensor", id="uint8-affine"),
        pytest.param(
            Scheme(IntGrid(8, narrow=True), granularity=PerChannel(0)),
            "int8 narrow symmetric per-channel(0)",
            id="int8-narrow-per-channel",
        ),
        pytest.param(
            Scheme(IntGrid(4), granularity=PerGroup(1, 32)), "int4 symmetric per-group(1, 32)", id="int4-per-group"
        ),
        pytest.param(
            Scheme(IntGrid(8), scale="power_of_two", rounding=Rounding.HALF_UP),
            "int8 symmetric per-tensor power-of-two half_up",
            id="int8-power-of-two-half-up",
        ),
        pytest.param(Scheme(LogGrid()), "log8 symmetric per-tensor", id="log8"),
        pytest.param(Scheme(ApotGrid(4)), "apot4 symmetric per-tensor", id="apot4"),
        pytest.param(Scheme(ApotGrid(4, signed=False)), "apot4 unsigned symmetric per-tensor", id="apot4-unsigned"),
    ],
)
def test_it_prints_as_a_person_would_say_it(scheme, text):
    assert str(scheme) == text


def test_it_is_frozen():
    with pytest.raises(FrozenInstanceError):
        Scheme(IntGrid(8)).symmetric = False


def test_a_rounding_may_be_given_by_its_word():
    scheme = Scheme(IntGrid(8), rounding="half_away")
    assert scheme.rounding is Rounding.HALF_AWAY
    assert scheme == Scheme(IntGrid(8), rounding=Rounding.HALF_AWAY)
    assert hash(scheme) == hash(Scheme(IntGrid(8), rounding=Rounding.HALF_AWAY))


# ---- refusals: what cannot be built ----


@pytest.mark.parametrize(
    ("build", "asked", "found", "to_do"),
    [
        pytest.param(lambda: Scheme(8), "Scheme(grid=8)", "grid is a int", "give a Grid", id="grid-is-a-number"),
        pytest.param(lambda: Scheme(IntGrid), "Scheme(grid=", "grid is a ABCMeta", "give a Grid", id="grid-is-a-class"),
        pytest.param(
            lambda: Scheme(IntGrid(8), symmetric=1),
            "Scheme(symmetric=1)",
            "symmetric is a int",
            "give a bool",
            id="symmetric-is-a-number",
        ),
        pytest.param(
            lambda: Scheme(IntGrid(8), symmetric="false"),
            "Scheme(symmetric='false')",
            "symmetric is a str",
            "give a bool",
            id="symmetric-is-a-string",
        ),
        pytest.param(
            lambda: Scheme(IntGrid(8), granularity="per_tensor"),
            "Scheme(granularity='per_tensor')",
            "granularity is a str",
            "give a Granularity",
            id="granularity-is-a-string",
        ),
        pytest.param(
            lambda: Scheme(IntGrid(8), scale="pot"),
            "Scheme(scale='pot')",
            "not a kind of scale",
            "'power_of_two'",
            id="unknown-scale",
        ),
        pytest.param(
            lambda: Scheme(IntGrid(8), rounding="half_odd"),
            "Scheme(rounding='half_odd')",
            "not a rounding",
            "half_even, half_up, half_down, half_away, half_toward_zero, floor, ceil, stochastic",
            id="unknown-rounding",
        ),
        pytest.param(
            lambda: Scheme(LogGrid(), symmetric=False),
            "an affine scheme on LogGrid(bits=8, steps=16)",
            "no room for a zero point",
            "symmetric=True",
            id="affine-log",
        ),
        pytest.param(
            lambda: Scheme(ApotGrid(4), symmetric=False),
            "an affine scheme on ApotGrid(bits=4, signed=True)",
            "no room for a zero point",
            "symmetric=True",
            id="affine-apot",
        ),
        pytest.param(
            lambda: Scheme(ApotGrid(4), rounding=Rounding.FLOOR),
            "rounding 'floor' on ApotGrid(bits=4, signed=True)",
            "unevenly spaced",
            "'half_even'",
            id="apot-rounding",
        ),
        pytest.param(
            lambda: Scheme(LogGrid(), scale="power_of_two"),
            "power-of-two scale on LogGrid(bits=8, steps=16)",
            "2^(n/16)",
            "scale='float'",
            id="log-power-of-two",
        ),
    ],
)
def test_what_cannot_be_is_refused(build, asked, found, to_do, refuses):
    with refuses(SchemeError, asked=asked, found=found, to_do=to_do):
        build()


INT8 = {"kind": "int", "bits": 8}


@pytest.mark.parametrize(
    ("data", "asked", "found", "to_do"),
    [
        pytest.param(
            {"grid": INT8, "bits": 8},
            "scheme with key 'bits'",
            "known keys are grid, symmetric, granularity, scale, rounding",
            "remove it",
            id="unknown-key-of-the-scheme",
        ),
        pytest.param(
            {"grid": {**INT8, "steps": 16}},
            "grid 'int' with key 'steps'",
            "known keys are bits, signed, narrow",
            "remove it",
            id="unknown-key-of-the-grid",
        ),
        pytest.param(
            {"grid": INT8, "granularity": {"kind": "per_tensor", "axis": 0}},
            "granularity 'per_tensor' with key 'axis'",
            "known keys are none",
            "remove it",
            id="unknown-key-of-the-granularity",
        ),
        pytest.param({"symmetric": True}, "scheme", "it has no 'grid'", "'kind': 'int'", id="no-grid"),
        pytest.param({"grid": {"bits": 8}}, "grid", "int, log, apot", "name a known kind", id="no-kind"),
        pytest.param(
            {"grid": {"kind": "fp8"}}, "'fp8'", "int, log, apot", "name a known kind", id="unknown-kind-of-grid"
        ),
        pytest.param({"grid": "int8"}, "'int8'", "int, log, apot", "name a known kind", id="grid-as-a-string"),
        pytest.param(
            {"grid": {"kind": ["int"]}}, "['int']", "int, log, apot", "name a known kind", id="kind-that-is-a-list"
        ),
        pytest.param(
            {"grid": INT8, "granularity": {"kind": "per_row"}},
            "'per_row'",
            "per_tensor, per_channel, per_group",
            "name a known kind",
            id="unknown-kind-of-granularity",
        ),
        pytest.param({"grid": {"kind": "int"}}, "{'kind': 'int'}", "bits", "add what is missing", id="no-bits"),
        pytest.param(
            {"grid": INT8, "granularity": {"kind": "per_group", "axis": 1}},
            "'per_group'",
            "size",
            "add what is missing",
            id="no-group-size",
        ),
        pytest.param({"grid": {"kind": "int", "bits": 33}}, "bits=33", "2 to 32 bits", "2..32", id="33-bits"),
        pytest.param({"grid": {"kind": "int", "bits": "8"}}, "bits='8'", "2 to 32 bits", "2..32", id="bits-as-text"),
        pytest.param(
            {"grid": INT8, "symmetric": None}, "symmetric=None", "NoneType", "give a bool", id="null-symmetric"
        ),
        pytest.param({"grid": INT8, "scale": "pot"}, "scale='pot'", "not a kind", "'power_of_two'", id="bad-scale"),
        pytest.param({"grid": INT8, "rounding": "up"}, "rounding='up'", "not a rounding", "half_up", id="bad-rounding"),
    ],
)
def test_a_dictionary_that_says_something_else_is_refused(data, asked, found, to_do, refuses):
    with refuses(SchemeError, asked=asked, found=found, to_do=to_do):
        Scheme.from_dict(data)

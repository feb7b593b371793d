"""A request for one tensor: every value checked, impossible ones refused, one laid over another."""

import copy
import pickle

import pytest

from detent.errors import RecipeError, SchemeError, UnknownNameError
from detent.numerics import Rounding
from detent.observers import OBSERVERS
from detent.quantizers import QUANTIZERS
from detent.recipes import Groups, Options, TensorRequest

KEYS = (
    "quantizer, quantizer_options, observer, observer_options, bits, grid, signed, narrow, symmetric, "
    "granularity, scale, rounding, quantize"
)
ROUNDINGS = "half_even, half_up, half_down, half_away, half_toward_zero, floor, ceil, stochastic"
GRANULARITIES = "allowed are 'per_tensor', 'per_channel', {'per_group': size}"


# ---- a value ----


def test_it_asks_for_nothing_unless_told():
    assert dict(TensorRequest()) == {
        "quantizer": None,
        "quantizer_options": {},
        "observer": None,
        "observer_options": {},
        "bits": None,
        "grid": None,
        "signed": None,
        "narrow": None,
        "symmetric": None,
        "granularity": None,
        "scale": None,
        "rounding": None,
        "quantize": None,
    }


def test_equal_requests_have_equal_hashes():
    one = TensorRequest(observer="percentile", observer_options={"percentile": 99.9, "bins": 2048}, bits=8)
    other = TensorRequest(bits=8, observer_options={"bins": 2048, "percentile": 99.9}, observer="percentile", grid=None)
    assert one == other
    assert hash(one) == hash(other)
    assert one != one.replace(bits=4)
    assert one != one.replace(observer_options={})


@pytest.mark.parametrize("carry", [copy.deepcopy, lambda request: pickle.loads(pickle.dumps(request))])
def test_it_survives_the_way_between_processes(carry):
    request = TensorRequest(observer="kl", observer_options={"bins": 64}, granularity="per_channel", rounding="floor")
    assert carry(request) == request
    assert hash(carry(request)) == hash(request)


def test_it_shows_what_was_said():
    request = TensorRequest(quantizer="lsq", bits=4, granularity={"per_group": 32}, rounding="floor")
    assert repr(request) == (
        "TensorRequest(quantizer='lsq', bits=4, granularity=Groups(per_group=32), rounding=<Rounding.FLOOR: 'floor'>)"
    )
    assert request.to_dict() == {
        "quantizer": "lsq",
        "bits": 4,
        "granularity": {"per_group": 32},
        "rounding": "floor",
    }


def test_words_become_the_types_of_the_library():
    request = TensorRequest(granularity={"per_group": 32}, rounding="half_up", observer_options={"bins": None})
    assert request.granularity == Groups(per_group=32)
    assert request.rounding is Rounding.HALF_UP
    assert request.observer_options == Options()
    assert TensorRequest(rounding=Rounding.HALF_UP, granularity=Groups(per_group=32)) == request


@pytest.mark.parametrize("signed", [True, False, "auto", None])
def test_signed_keeps_what_it_was_given(signed):
    assert TensorRequest(signed=signed).signed is signed


def test_it_is_frozen(refuses):
    request = TensorRequest(bits=8)
    with refuses(RecipeError, "TensorRequest.bits = 4", "it is frozen", "make another by replace()"):
        request.bits = 4
    with refuses(RecipeError, "del TensorRequest.bits", "it is frozen", "make another by replace()"):
        del request.bits
    with pytest.raises(TypeError, match="item assignment"):
        request.observer_options["bins"] = 4


def test_replace_checks_like_the_constructor(refuses):
    with refuses(SchemeError, "TensorRequest: bits = 33", "this grid has 2 to 32 bits", "choose an integer in 2..32"):
        TensorRequest(bits=8).replace(bits=33)


# ---- refusals ----


def refused(identity, error, given, asked, found, to_do):
    return pytest.param(error, given, asked, found, to_do, id=identity)


@pytest.mark.parametrize(
    ("error", "given", "asked", "found", "to_do"),
    [
        refused(
            "misspelt-key", RecipeError, {"obsrver": "kl"},
            "obsrver = 'kl'", f"no such key; known: {KEYS}", "did you mean 'observer'?",
        ),
        refused("unknown-key", RecipeError, {"qqq": 1}, "qqq = 1", f"no such key; known: {KEYS}", "remove it"),
        refused("bits-text", RecipeError, {"bits": "8"}, "bits = '8'", "it is a str", "give an integer"),
        refused("bits-float", RecipeError, {"bits": 8.0}, "bits = 8.0", "it is a float", "give an integer"),
        refused("bits-bool", RecipeError, {"bits": True}, "bits = True", "it is a bool", "give an integer"),
        refused(
            "int-1-bit", SchemeError, {"bits": 1},
            "bits = 1", "this grid has 2 to 32 bits", "choose an integer in 2..32",
        ),
        refused(
            "log-2-bits", SchemeError, {"grid": "log", "bits": 2},
            "bits = 2", "this grid has 3 to 16 bits", "choose an integer in 3..16",
        ),
        refused(
            "apot-9-bits", SchemeError, {"grid": "apot", "bits": 9},
            "bits = 9", "this grid has 2 to 8 bits", "choose an integer in 2..8",
        ),
        refused(
            "signed-apot-2-bits", SchemeError, {"quantizer": "apot", "bits": 2, "signed": True},
            "bits = 2", "this grid has 3 to 8 bits", "choose an integer in 3..8",
        ),
        refused(
            "e4m3-4-bits", SchemeError, {"grid": "e4m3", "bits": 4},
            "bits = 4", "it has 8", "leave bits out",
        ),
        refused(
            "affine-e8m0", SchemeError, {"scale": "e8m0", "symmetric": False},
            "an affine scheme with e8m0 scales", "their formats have no zero points", "use symmetric=True",
        ),
        refused(
            "grid", RecipeError, {"grid": "logg"},
            "grid = 'logg'", "allowed are 'int', 'log', 'apot', 'half', 'e4m3', 'e5m2', 'e2m1', 'nf4'",
            "did you mean 'log'?",
        ),
        refused(
            "signed-number", RecipeError, {"signed": 1},
            "signed = 1", "allowed are True, False, 'auto'", "use one of these",
        ),
        refused(
            "signed-word", RecipeError, {"signed": "atuo"},
            "signed = 'atuo'", "allowed are True, False, 'auto'", "did you mean 'auto'?",
        ),
        refused("narrow", RecipeError, {"narrow": "yes"}, "narrow = 'yes'", "it is a str", "give true or false"),
        refused("symmetric", RecipeError, {"symmetric": 0}, "symmetric = 0", "it is a int", "give true or false"),
        refused("quantize", RecipeError, {"quantize": 1}, "quantize = 1", "it is a int", "give true or false"),
        refused(
            "scale", RecipeError, {"scale": "power_of_to"},
            "scale = 'power_of_to'",
            "allowed are 'float', 'power_of_two', 'e8m0', 'e4m3', 'float16', 'bfloat16', 'super6', 'super8'",
            "did you mean 'power_of_two'?",
        ),
        refused(
            "rounding", RecipeError, {"rounding": "half_evn"},
            "rounding = 'half_evn'", f"allowed are {ROUNDINGS}", "did you mean 'half_even'?",
        ),
        refused(
            "rounding-list", RecipeError, {"rounding": ["floor"]},
            "rounding = ['floor']", f"allowed are {ROUNDINGS}", "use one of these",
        ),
        refused(
            "granularity", RecipeError, {"granularity": "per_chanel"},
            "granularity = 'per_chanel'", GRANULARITIES, "did you mean 'per_channel'?",
        ),
        refused(
            "granularity-number", RecipeError, {"granularity": 32},
            "granularity = 32", GRANULARITIES, "use one of these",
        ),
        refused(
            "group-key", RecipeError, {"granularity": {"per_groop": 32}},
            "granularity = {'per_groop': 32}", "no such key; known: per_group", "did you mean 'per_group'?",
        ),
        refused(
            "group-of-0", RecipeError, {"granularity": {"per_group": 0}},
            "granularity = {'per_group': 0}", "allowed are 1 to 2147483647", "choose an integer in 1..2147483647",
        ),
        refused(
            "group-text", RecipeError, {"granularity": {"per_group": "32"}},
            "granularity = {'per_group': '32'}", "it is a str", "give an integer",
        ),
        refused("name-number", RecipeError, {"quantizer": 3}, "quantizer = 3", "it is a int", "give text"),
        refused(
            "unknown-option", RecipeError, {"observer": "percentile", "observer_options": {"percentil": 99.9}},
            "observer_options.percentil = 99.9",
            "observer 'percentile' takes percentile, bins", "did you mean 'percentile'?",
        ),
        refused(
            "option-of-none", RecipeError, {"quantizer": "fixed", "quantizer_options": {"bins": 9}},
            "quantizer_options.bins = 9", "quantizer 'fixed' takes no options", "remove it",
        ),
        refused(
            "option-that-is-ours", RecipeError, {"quantizer": "lsq", "quantizer_options": {"role": "weight"}},
            "quantizer_options.role = 'weight'", "quantizer 'lsq' takes gradient_scale", "remove it",
        ),
        refused(
            "option-type", RecipeError, {"observer": "kl", "observer_options": {"bins": 9.5}},
            "observer_options.bins = 9.5", "it is a float; observer 'kl' wants int | None", "give a value of that type",
        ),
        refused(
            "option-bool", RecipeError, {"observer": "std", "observer_options": {"sigmas": True}},
            "observer_options.sigmas = True", "it is a bool; observer 'std' wants float", "give a value of that type",
        ),
        refused(
            "option-word", RecipeError, {"quantizer": "lsq", "quantizer_options": {"gradient_scale": "nnoe"}},
            "quantizer_options.gradient_scale = 'nnoe'",
            "it is a str; quantizer 'lsq' wants Literal['lsq', 'bounded', 'none']", "did you mean 'none'?",
        ),
        refused(
            "options-list", RecipeError, {"observer_options": ["bins"]},
            "observer_options = ['bins']", "it is a list", "give a mapping of options to values",
        ),
        refused(
            "option-list", RecipeError, {"observer_options": {"bins": [1]}},
            "observer_options.bins = [1]", "it is a list", "give text, a finite number, true or false",
        ),
        refused(
            "option-nan", RecipeError, {"observer_options": {"bins": float("nan")}},
            "observer_options.bins = nan", "it is not a finite number", "give text, a finite number, true or false",
        ),
        refused(
            "option-surrogate", RecipeError, {"observer_options": {"word": "\ud800"}},
            r"observer_options.word = '\ud800'", "it cannot be written in UTF-8",
            "give text, a finite number, true or false",
        ),
        refused(
            "option-key", RecipeError, {"observer_options": {3: 4}},
            "observer_options.3 = 4", "the key is a int", "give text, a finite number, true or false",
        ),
        refused(
            "narrow-unsigned", SchemeError, {"narrow": True, "signed": False},
            "narrow = True", "narrow drops the code -2^(b-1), which only signed integer grids have",
            "leave narrow out",
        ),
        refused(
            "narrow-log", SchemeError, {"narrow": True, "grid": "log"},
            "narrow = True", "narrow drops the code -2^(b-1), which only signed integer grids have",
            "leave narrow out",
        ),
        refused(
            "unsigned-log", SchemeError, {"signed": False, "grid": "log"},
            "signed = False", "grids of kind 'log' hold a sign", "use signed: true",
        ),
        refused(
            "affine-log", SchemeError, {"grid": "log", "symmetric": False},
            "an affine scheme on LogGrid(bits=8, steps=16)", "LogGrid has no room for a zero point",
            "use symmetric=True",
        ),
        refused(
            "affine-tqt", SchemeError, {"quantizer": "tqt", "symmetric": False},
            "'tqt' with int8 affine per-tensor power-of-two",
            "it needs a symmetric scheme, because it learns the exponent of one threshold for both sides",
            "change the scheme, or choose another method",
        ),
        refused(
            "float-tqt", SchemeError, {"quantizer": "tqt", "scale": "float"},
            "'tqt' with int8 symmetric per-tensor",
            "it needs a power-of-two scale, because it learns the exponent of one threshold for both sides",
            "change the scheme, or choose another method",
        ),
        refused(
            "kl-16-bits", SchemeError, {"observer": "kl", "bits": 16},
            "'observer kl' with int16 symmetric per-tensor",
            "it needs at most 8 bits, because it compares the codes with a few thousand histogram bins",
            "change the scheme, or choose another method",
        ),
        refused(
            "grids-that-exclude-each-other", SchemeError, {"quantizer": "apot", "observer": "kl"},
            "'apot' with int8 symmetric per-tensor",
            "it needs a grid of kind ApotGrid, because its levels are sums of powers of two",
            "change the scheme, or choose another method",
        ),
    ],
)  # fmt: skip
def test_a_mistake_is_refused(error, given, asked, found, to_do, refuses):
    with refuses(error, f"TensorRequest: {asked}", found, to_do):
        TensorRequest(**given)
    with refuses(error, f"some.yaml: {asked}", found, to_do):
        TensorRequest.from_dict(given, source="some.yaml")


@pytest.mark.parametrize(
    ("key", "table", "given", "near"),
    [("observer", OBSERVERS, "percentil", "percentile"), ("quantizer", QUANTIZERS, "lsqplus", "lsq_plus")],
)
def test_an_unknown_method_answers_with_the_nearest(key, table, given, near, refuses):
    known = f"not one of {', '.join(sorted(table))}"
    with refuses(UnknownNameError, f"TensorRequest: {key} = {given!r}", known, f"did you mean {near!r}?"):
        TensorRequest(**{key: given})


def test_a_long_value_is_cut_short():
    with pytest.raises(RecipeError) as caught:
        TensorRequest(grid="x" * 100_000)
    assert len(caught.value.asked) < 200


# ---- what is possible is not refused ----


@pytest.mark.parametrize("name", QUANTIZERS)
def test_every_quantizer_may_be_named_alone(name):
    assert TensorRequest(quantizer=name).quantizer == name


@pytest.mark.parametrize("name", OBSERVERS)
def test_every_observer_may_be_named_alone(name):
    assert TensorRequest(observer=name).observer == name


@pytest.mark.parametrize(
    "given",
    [
        pytest.param({"grid": "apot", "bits": 2, "signed": "auto"}, id="2-bit-apot-where-unsigned"),
        pytest.param({"quantizer": "log", "bits": 5}, id="log-by-its-quantizer"),
        pytest.param({"observer": "pow2_sse", "quantizer": "fixed"}, id="power-of-two-by-its-observer"),
        pytest.param({"observer": "isotone"}, id="per-tensor-by-its-observer"),
        pytest.param({"narrow": True, "signed": "auto"}, id="narrow-where-signed"),
        pytest.param({"observer": "percentile", "observer_options": {"percentile": 99}}, id="int-for-float"),
        pytest.param({"bits": 32, "symmetric": False, "scale": "power_of_two", "rounding": "stochastic"}, id="int32"),
    ],
)
def test_what_some_scheme_can_have_is_accepted(given):
    assert TensorRequest(**given).to_dict() == given


# ---- one laid over another ----


def test_what_is_not_said_is_taken_from_the_base():
    base = TensorRequest(quantizer="lsq", bits=8, symmetric=True, signed="auto", quantize=False)
    over = TensorRequest(bits=4, signed=False, quantize=True)
    assert over.over(base) == TensorRequest(quantizer="lsq", bits=4, symmetric=True, signed=False, quantize=True)
    assert TensorRequest().over(base) == base
    assert base.over(TensorRequest()) == base


def test_false_is_something_said():
    base = TensorRequest(symmetric=True, narrow=True, quantize=True)
    over = TensorRequest(symmetric=False, narrow=False, quantize=False)
    assert over.over(base) == over


PERCENTILE = TensorRequest(observer="percentile", observer_options={"percentile": 99.9, "bins": 512})


def test_options_are_laid_over_one_by_one():
    for over in ({"observer_options": {"bins": 64}}, {"observer": "percentile", "observer_options": {"bins": 64}}):
        laid = TensorRequest(**over).over(PERCENTILE)
        assert laid.observer == "percentile"
        assert laid.observer_options == {"percentile": 99.9, "bins": 64}


def test_options_of_another_method_are_left_behind():
    assert TensorRequest(observer="minmax").over(PERCENTILE) == TensorRequest(observer="minmax")
    over = TensorRequest(observer="kl", observer_options={"bins": 64})
    assert over.over(PERCENTILE) == over


def test_what_cannot_be_laid_over_is_refused(refuses):
    with refuses(
        SchemeError, "laid over its base: bits = 16", "this grid has 2 to 8 bits", "choose an integer in 2..8"
    ):
        TensorRequest(bits=16).over(TensorRequest(grid="apot"))
    with refuses(
        RecipeError,
        "laid over its base: observer_options.sigmas = 3.0",
        "observer 'percentile' takes percentile, bins",
        "remove it",
    ):
        TensorRequest(observer_options={"sigmas": 3.0}).over(PERCENTILE)

"""Any recipe, through any format, comes back equal."""

from hypothesis import given
from hypothesis import strategies as st

from detent.numerics import Rounding
from detent.recipes import Recipe, TensorRequest
from detent.recipes.files import FORMATS

TEXT = st.text(st.characters(codec="utf-8"), min_size=1)
FLOATS = st.floats(allow_nan=False, allow_infinity=False)


def mapping(**optional):
    return st.fixed_dictionaries({}, optional=optional)


COMMON = {
    "signed": st.sampled_from([True, "auto"]),
    "granularity": st.sampled_from(["per_tensor", "per_channel"])
    | st.builds(lambda n: {"per_group": n}, st.integers(1, 999)),
    "quantize": st.booleans(),
}
PLAIN = mapping(
    **COMMON,
    bits=st.integers(2, 32),
    grid=st.just("int"),
    narrow=st.booleans(),
    symmetric=st.booleans(),
    scale=st.sampled_from(["float", "power_of_two"]),
    rounding=st.sampled_from([mode.value for mode in Rounding]),
)
METHODS = st.sampled_from(
    [
        {"quantizer": "lsq", "quantizer_options": {"gradient_scale": "none"}},
        {"quantizer": "fixed", "observer": "minmax"},
        {},
    ]
)
PERCENTILES = st.builds(
    lambda options: {"observer": "percentile", "observer_options": options},
    mapping(percentile=FLOATS, bins=st.integers()),
)
INTEGER = st.builds(lambda *parts: {k: v for part in parts for k, v in part.items()}, PLAIN, METHODS, PERCENTILES)
LOGARITHMIC = mapping(**COMMON, bits=st.integers(3, 8), quantizer=st.just("log"), scale=st.just("float")).map(
    lambda request: {**request, "grid": "log"}
)
ADDITIVE = mapping(**COMMON, bits=st.integers(3, 8), quantizer=st.just("apot"), symmetric=st.just(True)).map(
    lambda request: {**request, "grid": "apot"}
)
REQUESTS = st.one_of(INTEGER, LOGARITHMIC, ADDITIVE)
MATCHES = mapping(name=TEXT, kind=TEXT).filter(bool)
# What a rule asks for must suit whatever it is laid over.
SMALL = mapping(**COMMON, bits=st.integers(3, 8))
RULES = st.builds(
    lambda match, rest: {"match": match, **rest},
    MATCHES,
    mapping(weight=SMALL, activation=SMALL, bias=SMALL, quantize=st.booleans()),
)
RECIPES = st.builds(
    lambda name, rest: {"name": name, **rest},
    TEXT,
    mapping(
        weight=REQUESTS,
        activation=REQUESTS,
        bias=PLAIN,
        batch_norm=mapping(strategy=st.integers(-1, 4), freeze_at_epoch=st.integers(0, 2**63 - 1)),
        calibration=mapping(batches=st.integers(1, 512), inputs=st.sampled_from(["float", "quantized"])),
        rules=st.lists(RULES, max_size=3),
        exclude=st.lists(TEXT, max_size=3),
        seed=st.integers(0, 2**63 - 1),
    ),
)


def through(suffix, data):
    text = FORMATS[suffix].dumps(data).encode().decode()
    return FORMATS[suffix].loads(text)


@given(RECIPES)
def test_every_format_brings_a_recipe_back(data):
    recipe = Recipe.from_dict(data)
    again = [Recipe.from_dict(through(suffix, recipe.to_dict())) for suffix in FORMATS]
    assert again == [recipe] * len(FORMATS)
    assert {hash(one) for one in again} == {hash(recipe)}


@given(RECIPES)
def test_a_dictionary_is_as_small_as_it_can_be(data):
    recipe = Recipe.from_dict(data)
    small = recipe.to_dict()
    assert Recipe.from_dict(small) == recipe
    assert Recipe.from_dict(small).to_dict() == small
    for key in small.keys() - {"name"}:
        assert Recipe.from_dict({k: v for k, v in small.items() if k != key}) != recipe


@given(INTEGER, INTEGER, INTEGER)
def test_laying_over_is_associative_and_idempotent(a, b, c):
    a, b, c = (TensorRequest(**given) for given in (a, b, c))
    assert a.over(b).over(c) == a.over(b.over(c))
    assert a.over(a) == a
    assert a.over(TensorRequest()) == a == TensorRequest().over(a)


@given(RECIPES, TEXT, TEXT)
def test_every_tensor_of_every_layer_gets_a_decided_request(data, name, kind):
    recipe = Recipe.from_dict(data)
    for role in ("weight", "activation", "bias"):
        assert recipe.for_tensor(role, name, kind).quantize in (True, False)

"""A recipe: a strict value, its rules and excludes, and what each tensor gets."""

import copy
import pickle

import pytest

from detent.errors import RecipeError, SchemeError
from detent.recipes import BatchNorm, Calibration, Match, Recipe, Rule, TensorRequest

KEYS = "name, weight, activation, bias, batch_norm, calibration, algorithms, rules, exclude, cpu, mix, seed"


def recipe(**given):
    return Recipe.from_dict({"name": "mine", **given}, source="mine.yaml")


# ---- a value ----


def test_only_the_name_is_required():
    assert recipe() == Recipe(
        name="mine",
        weight=TensorRequest(),
        activation=TensorRequest(),
        bias=TensorRequest(),
        batch_norm=BatchNorm(),
        calibration=Calibration(batches=None, inputs="float"),
        rules=(),
        exclude=(),
        seed=0,
    )
    assert recipe().to_dict() == {"name": "mine"}


def test_null_is_the_default():
    empty = dict.fromkeys(["weight", "activation", "bias", "batch_norm", "calibration", "rules", "exclude"])
    assert recipe(**empty) == recipe()
    assert (
        recipe(
            calibration={"batches": None, "inputs": None, "correct_biases": None, "choose_ranges": None},
            batch_norm={"strategy": None},
        )
        == recipe()
    )
    rule = {"match": {"name": "fc", "kind": None}, "weight": None, "quantize": None}
    assert recipe(rules=[rule]).rules == (Rule(match=Match(name="fc")),)


FULL = {
    "name": "mine",
    "weight": {"quantizer": "lsq", "bits": 4, "granularity": {"per_group": 32}},
    "activation": {"observer": "percentile", "observer_options": {"percentile": 99.9}, "rounding": "half_up"},
    "bias": {"quantize": False},
    "batch_norm": {"strategy": -1, "freeze_at_epoch": 0},
    "calibration": {"batches": 512, "inputs": "quantized", "correct_biases": True, "choose_ranges": False},
    "rules": [{"match": {"kind": "conv"}, "weight": {"bits": 8}, "quantize": True}],
    "exclude": ["head", "stem.*"],
    "seed": 2**63 - 1,
}


def test_a_dictionary_comes_back_as_it_was():
    assert Recipe.from_dict(FULL).to_dict() == FULL


def test_equal_recipes_have_equal_hashes():
    one, other = Recipe.from_dict(FULL), Recipe.from_dict(dict(reversed(FULL.items())))
    assert one == other
    assert hash(one) == hash(other)
    for key in FULL:
        changed = one.replace(**{key: "other" if key == "name" else 1 if key == "seed" else None})
        assert changed != one


@pytest.mark.parametrize("carry", [copy.deepcopy, lambda one: pickle.loads(pickle.dumps(one))], ids=["copy", "pickle"])
def test_it_survives_the_way_between_processes(carry):
    assert carry(Recipe.from_dict(FULL)) == Recipe.from_dict(FULL)


def test_it_is_frozen(refuses):
    with refuses(RecipeError, "Recipe.seed = 3", "it is frozen", "make another by replace()"):
        recipe().seed = 3


def test_it_keeps_nothing_of_the_data_it_was_made_from():
    data = copy.deepcopy(FULL)
    made = Recipe.from_dict(data)
    data["rules"].clear()
    data["activation"]["observer_options"]["percentile"] = 1.0
    made.to_dict()["exclude"].append("everything")
    assert made.to_dict() == FULL


def test_it_prints_as_yaml():
    assert str(recipe(weight={"bits": 4}, exclude=["*.head"])) == (
        "name: mine\nweight:\n  bits: 4\nexclude:\n- '*.head'"
    )


# ---- refusals ----


@pytest.mark.parametrize(
    ("error", "given", "asked", "found", "to_do"),
    [
        pytest.param(
            RecipeError, {"wieghts": {}}, "wieghts = {}", f"no such key; known: {KEYS}", "did you mean 'weight'?",
            id="misspelled-key",
        ),
        pytest.param(
            RecipeError, {8: {}}, "8 = {}", f"no such key; known: {KEYS}", "remove it", id="key-that-is-a-number"
        ),
        pytest.param(
            RecipeError, {"weight": [4]}, "weight = [4]", "it is a list",
            "give a mapping with keys of quantizer, quantizer_options, observer, observer_options, bits, grid, signed, "
            "narrow, symmetric, granularity, scale, rounding, quantize",
            id="section-that-is-a-list",
        ),
        pytest.param(
            RecipeError, {"name": ""}, "name = ''", "it is empty", "give at least one character", id="empty-name"
        ),
        pytest.param(RecipeError, {"name": None}, "name = None", "it is a NoneType", "give text", id="null-name"),
        pytest.param(
            RecipeError, {"name": "\udfff"}, r"name = '\udfff'", "it cannot be written in UTF-8",
            "remove the lone surrogates", id="surrogate-name",
        ),
        pytest.param(
            RecipeError, {"seed": -1}, "seed = -1", "allowed are 0 to 9223372036854775807",
            "choose an integer in 0..9223372036854775807", id="negative-seed",
        ),
        pytest.param(RecipeError, {"seed": "1"}, "seed = '1'", "it is a str", "give an integer", id="seed-text"),
        pytest.param(
            RecipeError, {"batch_norm": {"strategy": 5}}, "batch_norm.strategy = 5", "allowed are -1, 0, 1, 2, 3, 4",
            "use one of these", id="strategy-5",
        ),
        pytest.param(
            RecipeError, {"batch_norm": {"strategy": True}}, "batch_norm.strategy = True",
            "allowed are -1, 0, 1, 2, 3, 4", "use one of these", id="strategy-bool",
        ),
        pytest.param(
            RecipeError, {"batch_norm": {"freeze_epoch": 5}}, "batch_norm.freeze_epoch = 5",
            "no such key; known: strategy, freeze_at_epoch", "did you mean 'freeze_at_epoch'?", id="batch-norm-key",
        ),
        pytest.param(
            RecipeError, {"calibration": {"batches": 0}}, "calibration.batches = 0", "allowed are 1 to 512",
            "choose an integer in 1..512", id="no-batches",
        ),
        pytest.param(
            RecipeError, {"calibration": {"batches": 513}}, "calibration.batches = 513", "allowed are 1 to 512",
            "choose an integer in 1..512", id="many-batches",
        ),
        pytest.param(
            RecipeError, {"calibration": {"inputs": "quantised"}}, "calibration.inputs = 'quantised'",
            "allowed are 'float', 'quantized'", "did you mean 'quantized'?", id="inputs",
        ),
        pytest.param(
            RecipeError, {"calibration": {"correct_biases": 1}}, "calibration.correct_biases = 1", "it is a int",
            "give true or false", id="correct-biases",
        ),
        pytest.param(RecipeError, {"exclude": "fc"}, "exclude = 'fc'", "it is a str", "give a list", id="exclude-word"),
        pytest.param(
            RecipeError, {"exclude": ["fc", 3]}, "exclude[1] = 3", "it is a int", "give text", id="exclude-number"
        ),
        pytest.param(RecipeError, {"rules": {}}, "rules = {}", "it is a dict", "give a list", id="rules-mapping"),
        pytest.param(
            RecipeError, {"rules": [{"match": {"name": "a"}}, {"match": {"name": "b"}, "weight": {"bit": 4}}]},
            "rules[1].weight.bit = 4",
            "no such key; known: quantizer, quantizer_options, observer, observer_options, bits, grid, signed, "
            "narrow, symmetric, granularity, scale, rounding, quantize",
            "did you mean 'bits'?", id="deep-key",
        ),
        pytest.param(
            SchemeError, {"weight": {"bits": 99}}, "weight.bits = 99", "this grid has 2 to 32 bits",
            "choose an integer in 2..32", id="bits",
        ),
        pytest.param(
            SchemeError, {"activation": {"grid": "apot", "symmetric": False}},
            "activation: an affine scheme on ApotGrid(bits=4, signed=False)", "ApotGrid has no room for a zero point",
            "use symmetric=True", id="impossible-scheme",
        ),
        pytest.param(
            SchemeError, {"bias": {"quantizer": "qdrop"}}, "bias.quantizer = 'qdrop'", "it is a method for activation",
            "for bias use one of dsq, fixed, log, lsq, lsq_plus, moving_range, tqt", id="wrong-role",
        ),
        pytest.param(
            SchemeError, {"rules": [{"match": {"name": "a"}, "weight": {"quantizer": "pact"}}]},
            "rules[0].weight.quantizer = 'pact'", "it is a method for activation",
            "for weight use one of adaround, apot, dorefa, dsq, fixed, log, lsq, lsq_plus, moving_range, qil, seq, tqt",
            id="wrong-role-in-a-rule",
        ),
        pytest.param(
            RecipeError, {"activation": {"observer_options": {"bins": 64}}},
            "activation.observer_options = {'bins': 64}", "there is no observer for these options",
            "add activation.observer", id="options-of-nothing",
        ),
        pytest.param(
            RecipeError, {"weight": {"observer": "fixed", "observer_options": {"low": -1.0}}},
            "weight.observer_options = {'low': -1.0}", "observer 'fixed' has no default for high",
            "add what is missing", id="options-that-lack",
        ),
        pytest.param(
            SchemeError,
            {"weight": {"grid": "apot"}, "rules": [{"match": {"name": "a"}, "weight": {"bits": 16}}]},
            "rules[0].weight: laid over its base: bits = 16", "this grid has 2 to 8 bits",
            "choose an integer in 2..8", id="rule-that-cannot-be-laid-over",
        ),
        pytest.param(
            RecipeError,
            {
                "weight": {"observer": "std"},
                "rules": [{"match": {"name": "a"}, "weight": {"observer_options": {"x": 1}}}],
            },
            "rules[0].weight: laid over its base: observer_options.x = 1", "observer 'std' takes sigmas",
            "remove it", id="rule-options-of-the-recipe's-observer",
        ),
    ],
)  # fmt: skip
def test_a_mistake_is_refused_with_its_path(error, given, asked, found, to_do, refuses):
    with refuses(error, f"mine.yaml: {asked}", found, to_do):
        Recipe.from_dict({"name": "mine", **given}, source="mine.yaml")


def test_a_misspelled_required_key_is_told_before_the_missing_one(refuses):
    with refuses(RecipeError, "Recipe: nmae = 'mine'", f"no such key; known: {KEYS}", "did you mean 'name'?"):
        Recipe(nmae="mine")
    with refuses(RecipeError, "Recipe: name", "it is missing", "add it"):
        Recipe()


@pytest.mark.parametrize("data", [[1], "lsq", 3])
def test_data_that_is_no_mapping_is_refused(data, refuses):
    found = f"it is a {type(data).__name__}"
    with refuses(RecipeError, f"Recipe: {data!r}", found, f"give a mapping with keys of {KEYS}"):
        Recipe.from_dict(data)


def test_data_that_holds_itself_is_refused():
    data = {"name": "mine"}
    data["weight"] = {"granularity": data}
    with pytest.raises(RecipeError, match="no such key"):
        Recipe.from_dict(data)


# ---- the request for one tensor ----

RULES = recipe(
    weight={"quantizer": "lsq", "bits": 4},
    activation={"quantizer": "fixed", "observer": "percentile", "observer_options": {"percentile": 99.9}},
    bias={"quantize": False},
    rules=[
        {"match": {"name": "keep.*"}},
        {"match": {"kind": "linear"}, "weight": {"bits": 8}, "bias": {"quantize": True, "bits": 32}},
        {"match": {"name": "layer4.*"}, "quantize": False, "activation": {"quantize": True, "bits": 16}},
        {"match": {"name": "*"}, "activation": {"observer_options": {"bins": 64}}},
    ],
    exclude=["head", "aux.*"],
)


@pytest.mark.parametrize(
    ("role", "name", "kind", "request_"),
    [
        pytest.param("weight", "fc", "linear", {"quantizer": "lsq", "bits": 8, "quantize": True}, id="by-kind"),
        pytest.param("bias", "fc", "linear", {"bits": 32, "quantize": True}, id="back-from-float"),
        pytest.param("bias", "conv1", "conv", {"quantize": False}, id="float-by-the-recipe"),
        pytest.param("weight", "keep.fc", "linear", {"quantizer": "lsq", "bits": 4, "quantize": True}, id="kept-away"),
        pytest.param(
            "weight", "layer4.fc", "linear", {"quantizer": "lsq", "bits": 8, "quantize": True}, id="first-match-wins"
        ),
        pytest.param(
            "weight", "layer4.conv", "conv", {"quantizer": "lsq", "bits": 4, "quantize": False}, id="float-by-the-rule"
        ),
        pytest.param(
            "activation",
            "layer4.conv",
            "conv",
            {
                "quantizer": "fixed",
                "observer": "percentile",
                "observer_options": {"percentile": 99.9},
                "bits": 16,
                "quantize": True,
            },
            id="a-role-says-otherwise",
        ),
        pytest.param(
            "activation",
            "conv1",
            "conv",
            {
                "quantizer": "fixed",
                "observer": "percentile",
                "observer_options": {"percentile": 99.9, "bins": 64},
                "quantize": True,
            },
            id="options-join",
        ),
        pytest.param("weight", "head", "linear", {"quantizer": "lsq", "bits": 8, "quantize": False}, id="excluded"),
        pytest.param(
            "weight", "aux.fc", "conv", {"quantizer": "lsq", "bits": 4, "quantize": False}, id="excluded-glob"
        ),
    ],
)
def test_for_tensor(role, name, kind, request_):
    assert RULES.for_tensor(role, name, kind) == TensorRequest(**request_)


def test_a_recipe_that_says_nothing_quantizes():
    assert recipe().for_tensor("bias", "conv1", "conv") == TensorRequest(quantize=True)


def test_an_unknown_role_is_refused(refuses):
    with refuses(
        RecipeError,
        "the request for the role 'wieght'",
        "roles are weight, activation, bias",
        "did you mean 'weight'?",
    ):
        recipe().for_tensor("wieght", "conv1", "conv")


# ---- what matches nothing ----

LAYERS = [("stem.conv", "conv"), ("layer1.0.conv1", "conv"), ("head", "linear")]


def test_what_matches_is_not_listed():
    rules = [{"match": {"name": "stem.*"}}, {"match": {"kind": "lin*"}}, {"match": {"name": "*", "kind": "conv"}}]
    assert recipe(rules=rules, exclude=["head", "*.conv?"]).unmatched(iter(LAYERS)) == []


def test_what_matches_nothing_is_listed_with_the_nearest_name():
    rules = [
        {"match": {"name": "layer1.0.conv2"}},
        {"match": {"name": "head"}},
        {"match": {"kind": "matmul"}},
        {"match": {"name": "head", "kind": "conv"}},
    ]
    assert recipe(rules=rules, exclude=["Head", "nowhere.at.all"]).unmatched(LAYERS) == [
        "rules[0] (name 'layer1.0.conv2'); the nearest name is 'layer1.0.conv1'",
        "rules[2] (kind 'matmul')",
        "rules[3] (name 'head' and kind 'conv'); the nearest name is 'head'",
        "exclude[0] (name 'Head'); the nearest name is 'head'",
        "exclude[1] (name 'nowhere.at.all')",
    ]


def test_of_an_empty_model_nothing_matches():
    assert recipe(exclude=["*"]).unmatched([]) == ["exclude[0] (name '*')"]

"""The recipes that come with Detent, and how a recipe is found by what the user calls it."""

from pathlib import Path

import pytest

from detent.errors import RecipeError, UnknownNameError
from detent.observers import OBSERVERS
from detent.quantizers import QUANTIZERS
from detent.recipes import BUILTIN, Recipe, TensorRequest, find

ROOT = Path(__file__).resolve().parents[2]
KNOWN = (
    "not one of adaround, apot, brecq, dorefa, dsq, equalize, fp8, gptq, kl, lsq, lsq_plus, mse, mxfp4, mxfp8, nf4, "
    "nvfp4, pact, percentile, ptq, q4_0, q4_k_m, q6_k, q8_0, qdrop, qil, rotate, seq, smoothquant, tqt, w4g128, w4g32, "
    "w4g32_autoround, w4g32_awq, w4g32_gptq, w4g32_hqq, w8"
)

# name: (weight quantizer, its observer, activation quantizer, its observer)
TABLE = {
    "ptq": ("fixed", None, "fixed", None),
    "percentile": ("fixed", None, "fixed", "percentile"),
    "kl": ("fixed", None, "fixed", "kl"),
    "mse": ("fixed", "mse", "fixed", "mse"),
    "equalize": ("fixed", None, "fixed", "mse"),
    "adaround": ("adaround", None, "fixed", None),
    "brecq": ("adaround", None, "qdrop", None),
    "qdrop": ("adaround", None, "qdrop", None),
    "gptq": ("fixed", "mse", "fixed", None),
    "w4g32": ("fixed", None, None, None),
    "w4g128": ("fixed", None, None, None),
    "w8": ("fixed", None, None, None),
    "w4g32_gptq": ("fixed", "mse", None, None),
    "w4g32_hqq": ("fixed", None, None, None),
    "w4g32_awq": ("fixed", None, None, None),
    "w4g32_autoround": ("fixed", None, None, None),
    **dict.fromkeys(("q8_0", "q6_k", "q4_k_m", "q4_0"), ("fixed", None, None, None)),
    "nf4": ("fixed", None, None, None),
    "mxfp4": ("fixed", None, None, None),
    "mxfp8": ("fixed", None, None, None),
    "nvfp4": ("fixed", None, None, None),
    "fp8": ("fixed", None, "fixed", None),
    "smoothquant": ("fixed", None, "fixed", None),
    "rotate": ("fixed", None, "fixed", None),
    "lsq": ("lsq", None, "lsq", None),
    "lsq_plus": ("lsq_plus", None, "lsq_plus", None),
    "tqt": ("tqt", None, "tqt", None),
    "pact": ("dorefa", None, "pact", None),
    "dorefa": ("dorefa", None, "dorefa", None),
    "dsq": ("dsq", None, "dsq", None),
    "qil": ("qil", None, "qil", None),
    "apot": ("apot", "start", "apot", "start"),
    "seq": ("seq", None, None, None),
}

# name: what runs when the model is calibrated
ALGORITHMS = {
    "equalize": ["equalize", "bias_correction"],
    "adaround": ["adaround"],
    "brecq": ["brecq"],
    "qdrop": ["qdrop"],
    "rotate": ["rotate"],
    "gptq": ["gptq"],
    "w4g32_gptq": ["gptq"],
    "w4g32_hqq": ["hqq"],
    "w4g32_awq": ["awq"],
    "w4g32_autoround": ["autoround"],
    "smoothquant": ["smoothquant"],
}


def test_the_algorithms():
    named = {name: [one.name for one in entry.recipe.algorithms] for name, entry in BUILTIN.items()}
    assert {name: names for name, names in named.items() if names} == ALGORITHMS
    assert BUILTIN["brecq"].recipe.activation.quantizer_options == {"probability": 1.0}


def test_the_table():
    assert {
        name: (
            entry.recipe.weight.quantizer,
            entry.recipe.weight.observer,
            entry.recipe.activation.quantizer,
            entry.recipe.activation.observer,
        )
        for name, entry in BUILTIN.items()
    } == TABLE


@pytest.mark.parametrize("name", TABLE)
def test_each_is_named_described_and_says_only_what_it_must(name):
    recipe = Recipe.named(name)
    assert recipe is BUILTIN[name].recipe
    assert recipe.name == name
    assert 10 < len(BUILTIN[name].description) < 100
    assert "\n" not in BUILTIN[name].description
    algorithms = {"algorithms"} if name in ALGORITHMS else set()
    calibrated = ("ptq", "percentile", "kl", "mse", "lsq", "lsq_plus", "pact", "dorefa", "dsq", "qil")
    calibration = {"calibration"} if name in calibrated else set()
    mix = {"mix"} if name in ("q8_0", "q6_k", "q4_k_m", "q4_0") else set()
    assert recipe.to_dict().keys() == {"name", "weight", "activation"} | algorithms | calibration | mix
    assert Recipe.from_dict(recipe.to_dict()) == recipe


@pytest.mark.parametrize("role", ["weight", "activation"])
@pytest.mark.parametrize("name", TABLE)
def test_each_asks_for_what_its_methods_cannot_do_without(name, role):
    request = getattr(Recipe.named(name), role)
    if request.quantize is False:
        assert request == TensorRequest(quantize=False)
        return
    quantizer = QUANTIZERS[request.quantizer]
    assert role in quantizer.roles
    needs = [quantizer.requires] + ([OBSERVERS[request.observer].requires] if request.observer else [])
    for need in needs:
        assert need.symmetric in (None, request.symmetric)
        assert need.scale in (None, request.scale)


def test_what_they_say_beside_the_methods():
    said = {name: entry.recipe.weight.replace(quantizer=None, observer=None) for name, entry in BUILTIN.items()}
    assert {name: request.to_dict() for name, request in said.items() if request != TensorRequest()} == {
        "tqt": {"symmetric": True, "scale": "power_of_two"},
        "pact": {"symmetric": True},
        "dorefa": {"symmetric": True},
        "qil": {"symmetric": True, "scale": "float"},
        "apot": {"grid": "apot", "bits": 4, "symmetric": True},
        "seq": {"grid": "half", "bits": 2, "symmetric": True, "scale": "float"},
        "w4g32": {"bits": 4, "granularity": {"per_group": 32}},
        "w4g128": {"bits": 4, "granularity": {"per_group": 128}},
        "w8": {"bits": 8, "granularity": {"per_group": 32}},
        "w4g32_gptq": {"bits": 4, "granularity": {"per_group": 32}},
        "w4g32_hqq": {"bits": 4, "granularity": {"per_group": 32}},
        "w4g32_awq": {"bits": 4, "granularity": {"per_group": 32}},
        "w4g32_autoround": {"bits": 4, "granularity": {"per_group": 32}},
        "nf4": {"grid": "nf4", "granularity": {"per_group": 64}},
        "mxfp4": {"grid": "e2m1", "granularity": {"per_group": 32}, "scale": "e8m0"},
        "mxfp8": {"grid": "e4m3", "granularity": {"per_group": 32}, "scale": "e8m0"},
        "nvfp4": {"grid": "e2m1", "granularity": {"per_group": 16}, "scale": "e4m3"},
        "fp8": {"grid": "e4m3"},
    }


def test_the_table_cannot_be_changed():
    with pytest.raises(TypeError):
        BUILTIN["mine"] = BUILTIN["lsq"]


def test_the_document_lists_them():
    text = (ROOT / "docs" / "recipes.md").read_text()
    for name, entry in BUILTIN.items():
        assert f"| `{name}` | {entry.description} |\n" in text


# ---- find ----


def test_a_recipe_is_found_by_itself_its_name_or_its_path(tmp_path):
    recipe = Recipe(name="mine", seed=3)
    recipe.save(tmp_path / "mine.json")
    assert find(recipe) is recipe
    assert find("lsq") is Recipe.named("lsq")
    assert find(tmp_path / "mine.json") == recipe
    assert find(str(tmp_path / "mine.json")) == recipe


def test_a_path_is_never_a_name(tmp_path, refuses):
    with refuses(
        RecipeError,
        f"read the recipe {tmp_path / 'lsq'}",
        "the suffix '' is not one of .yaml, .yml, .json, .toml",
        "name the file by its format",
    ):
        find(tmp_path / "lsq")


@pytest.mark.parametrize(
    ("name", "to_do"),
    [
        ("lsqq", "did you mean 'lsq'?"),
        ("LSQ+", "use one of these, or the path of a .yaml, .yml, .json or .toml file"),
        ("", "use one of these, or the path of a .yaml, .yml, .json or .toml file"),
    ],
)
def test_an_unknown_name_answers_with_the_nearest(name, to_do, refuses):
    for ask in (find, Recipe.named):
        with refuses(UnknownNameError, f"recipe {name!r}", KNOWN, to_do):
            ask(name)


@pytest.mark.parametrize("spec", [{"name": "mine"}, None, 3])
def test_anything_else_is_refused(spec, refuses):
    with refuses(
        RecipeError,
        f"the recipe {spec!r}",
        f"it is a {type(spec).__name__}",
        "give a Recipe, the name of a built-in one or the path of a file; Recipe.from_dict makes one of a dict",
    ):
        find(spec)

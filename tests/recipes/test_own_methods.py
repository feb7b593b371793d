"""An observer or quantizer of the user's own is named in a recipe like any other, once it is registered."""

import runpy
from pathlib import Path

import pytest

from detent.errors import RecipeError, UnknownNameError
from detent.numerics import QParams
from detent.observers import OBSERVERS, MinMax, Observer
from detent.quantizers import QUANTIZERS
from detent.recipes import Recipe, TensorRequest

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


@pytest.fixture(autouse=True)
def tables(monkeypatch):
    """What a test registers is gone after it."""
    for table in (OBSERVERS, QUANTIZERS):
        monkeypatch.setattr(table, "_table", dict(table._table))


FILE = "name: mine\nactivation: {quantizer: noisy, observer: median_of_batches}\n"


def test_the_examples_are_named_by_a_recipe(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text(FILE)
    with pytest.raises(UnknownNameError) as caught:
        Recipe.load(path)
    assert caught.value.asked == f"{path}: activation.quantizer = 'noisy'"

    observer = runpy.run_path(str(EXAMPLES / "own_observer.py"))["MedianOfBatches"]
    quantizer = runpy.run_path(str(EXAMPLES / "own_quantizer.py"))["Noisy"]
    request = Recipe.load(path).for_tensor("activation", "conv1", "conv")
    assert OBSERVERS[request.observer] is observer
    assert QUANTIZERS[request.quantizer] is quantizer


def test_the_options_of_the_examples_are_checked(refuses):
    runpy.run_path(str(EXAMPLES / "own_observer.py"))
    with refuses(
        RecipeError,
        "TensorRequest: observer_options.batches = 3",
        "observer 'median_of_batches' takes no options",
        "remove it",
    ):
        TensorRequest(observer="median_of_batches", observer_options={"batches": 3})


class Own(Observer):
    """Takes an option without a type, one whose type exists nowhere, and one without a default."""

    def __init__(self, scheme, *, name="tensor", first=1, second: "Nowhere" = 2, third):  # noqa: F821
        super().__init__(scheme, name=name)

    def _observe(self, x, low, high):
        raise NotImplementedError

    def _qparams(self, low, high) -> QParams:
        raise NotImplementedError


class Open(MinMax):
    """Takes whatever it is given."""

    def __init__(self, scheme, *, name="tensor", **options):
        super().__init__(scheme, name=name)


def test_options_without_a_type_take_any_value(refuses):
    OBSERVERS.register("own", Own)
    options = {"first": "word", "second": 2.5, "third": False}
    recipe = Recipe(name="mine", weight=TensorRequest(observer="own", observer_options=options))
    assert recipe.weight.observer_options == options
    with refuses(
        RecipeError,
        "Recipe: weight.observer_options = {}",
        "observer 'own' has no default for third",
        "add what is missing",
    ):
        Recipe(name="mine", weight=TensorRequest(observer="own"))


def test_a_class_that_takes_any_option_is_given_any_but_ours(refuses):
    OBSERVERS.register("open", Open)
    assert TensorRequest(observer="open", observer_options={"any word": 1}).observer_options == {"any word": 1}
    assert Recipe(name="mine", weight=TensorRequest(observer="open")).weight.observer == "open"
    with refuses(
        RecipeError, "TensorRequest: observer_options.scheme = 1", "observer 'open' takes options", "remove it"
    ):
        TensorRequest(observer="open", observer_options={"scheme": 1})

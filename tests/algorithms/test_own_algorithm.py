"""An algorithm of the user's own: registered or offered by a package, named in a recipe, run, recorded, deployed."""

import runpy
from pathlib import Path

import pytest
import torch
from torch import nn

import detent
from detent import registry
from detent.algorithms import ALGORITHMS, Algorithm, Report, record
from detent.errors import RecipeError, RegistrationError, UnknownNameError
from detent.graph import quantizers_of
from detent.numerics import QParams
from detent.recipes import Recipe

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


@pytest.fixture(autouse=True)
def table(monkeypatch):
    """What a test registers is gone after it."""
    monkeypatch.setattr(ALGORITHMS, "_table", dict(ALGORITHMS._table))


def double_scales(prepared, batches, *, factor: float = 2.0, places=None) -> Report:
    seen = len(list(batches))
    for quantizer in quantizers_of(prepared):
        if quantizer.role == "weight":
            found = quantizer.qparams()
            quantizer.initialize(QParams(found.scale * factor, found.zero_point))
    notes = (f"{seen} batches, {places}",)
    return record(prepared, Report(algorithm="double", metric="none", changes=(), skipped={}, notes=notes))


DOUBLE = Algorithm(double_scales, "after calibration", "scales twice as large")


def prepared_with(**options):
    torch.manual_seed(0)
    recipe = Recipe.from_dict({"name": "mine", "algorithms": [{"name": "double", "options": options}]})
    x = torch.randn(4, 8)
    return detent.prepare(nn.Sequential(nn.Linear(8, 3)), (x,), backend="litert", recipe=recipe), x


def weight_scales(prepared):
    return [q.qparams().scale for q in quantizers_of(prepared) if q.role == "weight"]


def test_a_recipe_names_it_and_it_runs_and_is_deployed(tmp_path):
    detent.algorithms.register("double", DOUBLE)
    prepared, x = prepared_with(factor=4)
    detent.calibrate(prepared, [x, x])
    once, _ = prepared_with(factor=1)
    detent.calibrate(once, [x])
    assert torch.equal(weight_scales(prepared)[0], 4 * weight_scales(once)[0])
    assert [report.algorithm for report in prepared.algorithm_notes] == ["double"]
    assert "double: 2 batches, None" in prepared.plan.notes
    artifact = detent.deploy(prepared, tmp_path / "out")
    (weight,) = [tensor for tensor in artifact.manifest["tensors"] if tensor["role"] == "weight"]
    assert weight["scale"] == pytest.approx(weight_scales(prepared)[0].flatten().tolist())


def test_its_options_are_checked_when_the_model_is_prepared(refuses):
    detent.algorithms.register("double", DOUBLE)
    with refuses(RecipeError, "algorithm 'double' with facto = 4", "it takes factor, places", "did you mean 'factor'?"):
        prepared_with(facto=4)
    with pytest.raises(RecipeError, match="it is a str; float is expected"):
        prepared_with(factor="much")
    prepared_with(places="an option without a type takes any value")


def test_a_package_offers_one(monkeypatch):
    class Point:
        @staticmethod
        def load():
            return DOUBLE

    asked = []

    def entry_points(*, group, name):
        asked.append((group, name))
        return [Point] if name == "double" else []

    monkeypatch.setattr(registry, "entry_points", entry_points)
    assert ALGORITHMS["double"] is DOUBLE
    assert asked == [("detent.algorithms", "double")]
    with pytest.raises(UnknownNameError, match="did you mean 'double'"):
        ALGORITHMS["doubel"]


def test_what_cannot_be_registered(refuses):
    detent.algorithms.register("double", DOUBLE)
    detent.algorithms.register("double", DOUBLE)
    other = Algorithm(double_scales, "before calibration", "another")
    with refuses(
        RegistrationError, "register algorithm 'double'", "the name is taken: scales twice as large", "choose another"
    ):
        detent.algorithms.register("double", other)
    with refuses(
        RegistrationError, "register algorithm 'mine'", "it is a function", "give an Algorithm(run, phase, about)"
    ):
        detent.algorithms.register("mine", double_scales)
    with refuses(
        RegistrationError,
        "register algorithm 'mine'",
        "its phase is 'later'",
        "use one of 'before calibration', 'after calibration'",
    ):
        detent.algorithms.register("mine", Algorithm(double_scales, "later", "when?"))


def test_the_example_is_named_by_a_recipe():
    found = runpy.run_path(str(EXAMPLES / "own_algorithm.py"))["shrink_scales"]
    assert ALGORITHMS["shrink_scales"].run is found

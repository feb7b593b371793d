"""Algorithms from recipes: names and options checked before anything runs, order and phase, the report."""

import json

import pytest

import detent
from detent.algorithms import ALGORITHMS, Change, Report, check
from detent.errors import RecipeError, UnknownNameError
from detent.recipes import Recipe
from tests.algorithms.nets import Convs, images


def prepared_with(*algorithms, backend="onnxruntime", **request):
    recipe = Recipe.from_dict({"name": "mine", "algorithms": list(algorithms), **request})
    data = images(4)
    return detent.prepare(Convs().eval(), (data[0],), backend=backend, recipe=recipe), data


def test_the_names():
    assert list(ALGORITHMS) == [
        "equalize", "smoothquant", "awq", "rotate", "hqq", "gptq", "autoround", "adaround", "brecq", "qdrop",
        "finetune_weights", "finetune_scales", "bias_correction",
    ]  # fmt: skip


def test_a_mistake_is_refused_before_anything_runs(refuses):
    with refuses(
        UnknownNameError,
        "algorithm 'adaruond'",
        f"not one of {', '.join(sorted(ALGORITHMS))}",
        "did you mean 'adaround'?",
    ):
        prepared_with({"name": "adaruond"})
    with refuses(
        RecipeError,
        "algorithm 'equalize' with round = 3",
        "it takes rounds, absorb, relu6",
        "did you mean 'rounds'?",
    ):
        prepared_with({"name": "equalize", "options": {"round": 3}})
    with refuses(
        RecipeError,
        "algorithm 'qdrop' with steps = 0.5",
        "it is a float; int is expected",
        "give a value of that type",
    ):
        prepared_with({"name": "qdrop", "options": {"steps": 0.5}})
    with pytest.raises(RecipeError, match="guess"):
        check("bias_correction", {"method": "guess"})
    check("smoothquant", {"alpha": 0.5})
    check("adaround", {"rate": 1})


def test_they_run_when_the_model_is_calibrated_each_in_its_phase():
    prepared, data = prepared_with(
        {"name": "bias_correction"}, {"name": "equalize", "options": {"rounds": 2}}, {"name": "gptq"}
    )
    detent.calibrate(prepared, data)
    assert [report.algorithm for report in prepared.algorithm_notes] == ["equalize", "bias_correction", "gptq"]
    assert sum("held-back data" in note for note in prepared.plan.notes) == 3


def test_they_need_the_batches_more_than_once(refuses):
    prepared, data = prepared_with({"name": "equalize"})
    with refuses(RecipeError, "equalize with an iterator", "the batches are needed twice", "give a list or a loader"):
        detent.calibrate(prepared, iter(data))


def test_they_see_as_many_batches_as_the_recipe_says():
    prepared, data = prepared_with({"name": "bias_correction"}, calibration={"batches": 1})
    seen = []
    prepared.register_forward_pre_hook(lambda _, args: seen.append(args[0]))
    detent.calibrate(prepared, data)
    assert {len(x) for x in seen} <= {8, 6, 2}  # the first batch, and its parts to learn from and to judge by


def test_a_recipe_with_algorithms_goes_through_files(tmp_path):
    recipe = Recipe.from_dict(
        {"name": "mine", "algorithms": [{"name": "equalize"}, {"name": "adaround", "options": {"steps": 9}}]}
    )
    for suffix in (".yaml", ".json", ".toml"):
        recipe.save(tmp_path / f"mine{suffix}")
        assert Recipe.load(tmp_path / f"mine{suffix}") == recipe
    assert hash(recipe) == hash(Recipe.from_dict(recipe.to_dict()))


def test_a_report_is_plain_json():
    report = Report(
        algorithm="gptq",
        metric="squared error",
        changes=(Change(place="fc", before=1.0, after=2.0, kept=False, note="why"),),
        skipped={"conv": "float"},
    )
    assert json.loads(json.dumps(report.to_dict()))["changes"][0] == {
        "place": "fc", "before": 1.0, "after": 2.0, "kept": False, "note": "why"
    }  # fmt: skip
    assert report.rolled_back == report.changes
    assert "rolled back: why" in str(report)


def test_hqq_alone_needs_no_data():
    assert [name for name, algorithm in ALGORITHMS.items() if not algorithm.needs_data] == ["hqq"]

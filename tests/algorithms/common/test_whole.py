"""Nothing gets worse in silence: parts that did are put back, and all of it if the outputs did; the Plan says so."""

import importlib

import pytest
import torch

import detent
from detent.algorithms import ALGORITHMS
from detent.algorithms.common.floating import refuse_changed
from detent.recipes import Recipe
from tests.algorithms.nets import Convs, Mlp, images, noise, vectors

ROUNDED = {"weight": {"quantizer": "adaround", "bits": 4, "granularity": "per_channel"}}
BLOCKS = {**ROUNDED, "activation": {"quantizer": "qdrop", "bits": 4, "observer": "mse"}}
LEARNED = {"weight": {"quantizer": "lsq", "bits": 4}, "activation": {"quantizer": "lsq", "bits": 8}}

# Options under which it can only do harm, and what of the recipe it needs.
ABSURD = {
    "smoothquant": ({"alpha": 30.0}, {}),
    "adaround": ({"rate": 1e3, "steps": 1, "warm_up": 1.0}, ROUNDED),
    "brecq": ({"rate": 1e3, "scale_rate": 10.0, "steps": 1, "warm_up": 1.0}, BLOCKS),
    "qdrop": ({"rate": 1e3, "scale_rate": 10.0, "steps": 1, "warm_up": 1.0}, BLOCKS),
    "finetune_weights": ({"weight_rate": 50.0, "steps": 2}, {}),
    "finetune_scales": ({"scale_rate": 50.0, "steps": 2}, LEARNED),
    "gptq": ({"damping": 1e12}, {}),  # so much that nothing is made up for: as good as rounding to nearest, no better
}


def calibrated(algorithm, options, request, net, data):
    algorithms = [{"name": algorithm, "options": options}] if algorithm else []
    recipe = Recipe.from_dict({"name": "mine", "algorithms": algorithms, **request})
    prepared = detent.prepare(net.eval(), (data[0],), backend="academic", recipe=recipe)
    detent.calibrate(prepared, data)
    return prepared.eval()


@pytest.mark.by_default("finetune_scales", "gptq", "smoothquant")
@pytest.mark.parametrize("algorithm", ABSURD)
def test_absurd_options_do_no_harm_and_the_plan_says_so(algorithm):
    options, request = ABSURD[algorithm]
    net, data = (Mlp(), vectors()) if algorithm == "smoothquant" else (Convs(), images(4))
    prepared = calibrated(algorithm, options, request, net, data)
    plain = calibrated(None, {}, request, net, data)
    (report,) = prepared.algorithm_notes
    assert report.rolled_back
    for change in report.rolled_back:
        assert any(note.startswith(f"{algorithm}: {change.place} rolled back") for note in prepared.plan.notes)
    # On held-back data the outputs decide; on all of it together they are as good but for what chance does.
    held = data[-1:]
    assert noise(prepared, net, held) <= noise(plain, net, held) * (1 + 1e-6)


JUDGED_BY = {
    "adaround": "adaround",
    "gptq": "gptq",
    "bias_correction": "bias_correction",
    "smoothquant": "channel_scaling",
    "autoround": "autoround",
}


def spoil(monkeypatch, algorithm):
    """Its own judgment of a part says that all helped, while the part is made worse."""
    module = importlib.import_module(f"detent.algorithms.{JUDGED_BY.get(algorithm, 'common.reconstruction')}")
    monkeypatch.setattr(module, "better", lambda *_: True)
    if algorithm == "gptq":
        monkeypatch.setattr(module, "weight_by_moments", lambda *args, **_: torch.zeros_like(args[1]))
    if algorithm == "autoround":
        monkeypatch.setattr(
            module, "signed_rounding", lambda weight, scale, *_, **__: (torch.zeros_like(weight), scale)
        )
    if algorithm == "bias_correction":
        monkeypatch.setattr(module, "_mean_error", lambda *args: torch.full((args[1].channels,), 50.0))


@pytest.mark.by_default("adaround", "finetune_weights", "gptq", "bias_correction", "smoothquant")
@pytest.mark.parametrize("algorithm", [name for name in ALGORITHMS if name not in ("equalize", "hqq", "awq")])
def test_all_is_undone_if_the_outputs_got_worse(algorithm, monkeypatch):
    options, request = ABSURD.get(algorithm, ({}, {}))
    net, data = (Mlp(), vectors()) if algorithm == "smoothquant" else (Convs(), images(4))
    plain = calibrated(None, {}, request, net, data).state_dict()
    spoil(monkeypatch, algorithm)
    prepared = calibrated(algorithm, options, request, net, data)
    (report,) = prepared.algorithm_notes
    assert report.outputs is not None
    assert not report.outputs.kept
    assert report.outputs.after > report.outputs.before
    assert not any(change.kept for change in report.changes)
    assert report.to_dict()["outputs"]["kept"] is False
    assert "outputs" in str(report)
    assert any(note.startswith(f"{algorithm}: all undone, noise at the outputs") for note in prepared.plan.notes)
    for name, value in prepared.state_dict().items():
        assert torch.equal(value, plain[name]), name
    refuse_changed(prepared, "equalize")  # nothing counts as changed


def test_what_helped_is_kept_with_the_figures_of_the_outputs():
    net, data = Convs(), images(6)
    prepared = calibrated("adaround", {"steps": 100}, ROUNDED, net, data)
    (report,) = prepared.algorithm_notes
    assert report.outputs.kept
    assert report.outputs.after < report.outputs.before
    assert not any("undone" in note for note in prepared.plan.notes)

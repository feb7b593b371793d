"""Codes that make up for the wider steps of pairs, as a part of calibrating."""

import pytest
import torch
from torch import nn

import detent
from detent import calibrating
from detent.algorithms import all_layers
from detent.algorithms.calibration import pair_rounding
from detent.recipes import Recipe
from tests.algorithms.nets import noise

NOTE = "weights rounded to make up for the wider steps of pairs: "


def net():
    torch.manual_seed(3)
    made = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1, stride=2), nn.ReLU(), nn.Conv2d(8, 8, 1), nn.ReLU())
    made.append(nn.Conv2d(8, 8, 3, groups=2, bias=False)).append(nn.Flatten()).append(nn.Linear(32, 6))
    for layer in made:
        if isinstance(layer, (nn.Conv2d, nn.Linear)):
            layer.weight.data.abs_()  # of one sign: pairs leave the limit
    return made.eval()


def batches(size=16):
    """Neighbors go together, so that one weight can make up for another."""
    generator = torch.Generator().manual_seed(1)
    images = nn.functional.interpolate(torch.rand(96, 3, 4, 4, generator=generator), size=8, mode="bilinear")
    return list(images.split(size))


def calibrated(recipe="ptq", cpu=None, size=16):
    model = detent.prepare(net(), (batches()[0],), backend="onnxruntime", recipe=recipe, cpu=cpu).eval()
    detent.calibrate(model, batches(size))
    return model


def codes(model):
    return {layer.name: layer.quantizer.codes(layer.weight) for layer in all_layers(model)}


def test_the_outputs_are_nearer_to_the_float_ones_and_no_pair_leaves_the_limit(monkeypatch):
    chosen = calibrated()
    assert f"{NOTE}4 layers" in chosen.plan.notes
    assert all(layer.quantizer.pairs.largest(codes(chosen)[layer.name]) <= 128 for layer in all_layers(chosen))
    monkeypatch.setattr(calibrating, "round_pairs", lambda *_: {})
    nearest = calibrated()
    assert noise(chosen, net(), batches()) < 0.7 * noise(nearest, net(), batches())
    assert any((codes(chosen)[name] != values).any() for name, values in codes(nearest).items())


def test_the_batches_that_samples_come_in_do_not_matter():
    one, other = codes(calibrated(size=16)), codes(calibrated(size=40))
    assert all(torch.equal(values, other[name]) for name, values in one.items())


def test_rounding_to_nearest_stays_where_it_is_better(monkeypatch):
    monkeypatch.setattr(pair_rounding, "weight_by_moments", lambda _, weight, __: torch.zeros_like(weight))
    model = calibrated()
    assert all(
        torch.equal(model.get_submodule(name).parametrizations.weight.original, net()[int(name)].weight)
        for name in ("0", "2", "4", "6")
    )
    assert not any(note.startswith(NOTE) for note in model.plan.notes)


def test_calibrating_again_starts_from_the_float_weights():
    model = calibrated()
    before = codes(model)
    detent.calibrate(model, batches())
    assert all(torch.equal(values, before[name]) for name, values in codes(model).items())
    assert sum(note.startswith(NOTE) for note in model.plan.notes) == 1


def test_the_float_state_has_the_float_weights():
    model, expected = calibrated(), net().state_dict()
    found = detent.float_state_dict(model)
    assert all(torch.equal(found[name], value) for name, value in expected.items())


@pytest.mark.parametrize("asked", [{"cpu": "vnni"}, {"recipe": "gptq"}, {"recipe": Recipe(name="plain")}], ids=str)
def test_otherwise_weights_are_rounded_to_nearest(asked):
    assert not any(note.startswith(NOTE) for note in calibrated(**asked).plan.notes)


def test_gptq_keeps_pairs_within_the_limit_too():
    model = calibrated("gptq")
    (report,) = model.algorithm_notes
    assert [change.kept for change in report.changes] == [True] * 4
    assert all(layer.quantizer.pairs.largest(codes(model)[layer.name]) <= 128 for layer in all_layers(model))

"""BRECQ, QDrop and finetuning: blocks learned as a whole, from rows of cached data."""

import pytest
import torch

import detent
from detent.algorithms import brecq, finetune_scales, finetune_weights, qdrop
from detent.algorithms.common.samples import BlockSamples, Sample
from detent.errors import SchemeError
from detent.graph import quantizers_of
from detent.quantizers import QDrop
from tests.algorithms.nets import Convs, Mlp, images, noise, ready, vectors

W4A4 = {
    "weight": {"quantizer": "adaround", "bits": 4, "granularity": "per_channel"},
    "activation": {"quantizer": "qdrop", "bits": 4, "observer": "mse"},
}
LEARNED = {"weight": {"quantizer": "lsq", "bits": 3, "observer": "mse"}, "activation": {"quantizer": "lsq", "bits": 4}}


@pytest.mark.by_default("brecq")
@pytest.mark.parametrize("algorithm", [brecq, qdrop])
def test_outputs_come_nearer(algorithm):
    net, data = Convs(), images(8)
    prepared = ready(net, data, **W4A4)
    before = noise(prepared, net, data)
    report = algorithm(prepared, data, steps=100)
    assert noise(prepared, net, data) < 0.9 * before
    assert [change.place for change in report.changes] == ["stem", "expand .. project", "fc"]
    assert report.algorithm == algorithm.__name__


def test_activation_scales_are_learned_too():
    net, data = Convs(), images(8)
    prepared = ready(net, data, **W4A4)
    scales = {q: q.scale.detach().clone() for q in quantizers_of(prepared) if isinstance(q, QDrop)}
    report = brecq(prepared, data, steps=30)
    assert any(change.kept for change in report.changes)
    assert any(not torch.equal(q.scale, scale) for q, scale in scales.items())


@pytest.mark.parametrize("algorithm", [brecq, qdrop])
def test_the_model_is_left_as_it_came_but_for_what_was_learned(algorithm):
    net, data = Convs(), images(4)
    prepared = ready(net, data, **W4A4)
    prepared.train()
    asked = {name: parameter.requires_grad for name, parameter in prepared.named_parameters()}
    state = {name: value.clone() for name, value in prepared.state_dict().items()}
    algorithm(prepared, data, steps=5)
    assert {module.training for module in prepared.modules()} == {True}
    assert {name: parameter.requires_grad for name, parameter in prepared.named_parameters()} == asked
    assert all(parameter.grad is None for parameter in prepared.parameters())
    changed = {name for name, value in prepared.state_dict().items() if not torch.equal(value, state[name])}
    assert all(name.endswith((".rounding", ".scale")) for name in changed)


def test_what_does_not_help_is_rolled_back():
    data = images(4)
    prepared = ready(Convs(), data, **W4A4)
    state = {name: value.clone() for name, value in prepared.state_dict().items()}
    # One step that throws every weight to a side and makes every scale ten times as large.
    report = brecq(prepared, data, steps=1, rate=1e3, scale_rate=10.0, warm_up=1.0)
    assert "expand .. project" in {change.place for change in report.rolled_back}
    assert [change.kept for change in report.changes] == [change.after < change.before for change in report.changes]
    for name, value in prepared.state_dict().items():
        if name.startswith(("expand", "depthwise", "project", "activation_quantizers.act1")):
            assert torch.equal(value, state[name]), name


def test_weights_biases_and_scales_together():
    net, data = Convs(), images(8)
    prepared = ready(net, data, **LEARNED)
    before = noise(prepared, net, data)
    finetune_weights(prepared, data, steps=100)
    assert noise(prepared, net, data) < 0.8 * before


def test_scales_alone():
    net, data = Convs(), images(8)
    # The paper's start, which leaves more to be learned than ours.
    paper = {role: {**request, "observer": "lsq"} for role, request in LEARNED.items()}
    prepared = ready(net, data, **paper)
    weight = prepared.expand.parametrizations.weight.original.clone()
    before = noise(prepared, net, data)
    report = finetune_scales(prepared, data, steps=50, scale_rate=5e-3)
    assert any(change.kept for change in report.changes)
    assert noise(prepared, net, data) < before
    assert torch.equal(prepared.expand.parametrizations.weight.original, weight)


def test_scales_that_nobody_learns_are_refused():
    data = vectors(2)
    with pytest.raises(SchemeError, match="no quantizer of the model learns its scale"):
        finetune_scales(ready(Mlp(), data), data)


def test_models_with_an_island_are_reconstructed_in_parts():
    from tests.graph.nets import made

    net, inputs = made("control_flow")
    recipe = detent.Recipe.from_dict({"name": "mine", **W4A4})
    prepared = detent.prepare(net, inputs, backend="academic", recipe=recipe)
    batches = [inputs, inputs]
    detent.calibrate(prepared, batches)
    report = brecq(prepared, batches, steps=5)
    assert len(report.changes) >= 2


# ---- samples ----


def cached(*sizes):
    return [
        Sample(
            (torch.full((size, 2), float(call)),),
            (torch.full((size, 2), -1.0),),
            torch.full((size, 3), float(call)),
        )
        for call, size in enumerate(sizes)
    ]


def test_rows_are_drawn_from_all_calls_together_with_their_targets():
    samples = BlockSamples(cached(4, 4, 4), batch=6, drop=0.0, seed=0)
    seen = set()
    for _ in range(20):
        (x,), wanted = samples.draw()
        assert x.shape == (6, 2)
        assert torch.equal(x[:, 0], wanted[:, 0])
        seen |= set(x[:, 0].tolist())
    assert seen == {0.0, 1.0, 2.0}


def test_a_share_of_the_inputs_is_float():
    samples = BlockSamples(cached(400), batch=400, drop=0.25, seed=0)
    (x,), _ = samples.draw()
    # 800 draws at 1/4: 0.25 +- 0.06 is four standard deviations.
    assert 0.19 < float((x == -1).float().mean()) < 0.31


def test_calls_are_drawn_whole_where_rows_do_not_agree():
    mask = torch.zeros(1, 5)
    odd = [Sample((torch.ones(4, 2), mask), (torch.ones(4, 2), mask), torch.ones(4, 2))]
    inputs, wanted = BlockSamples(odd, batch=2, drop=0.0, seed=0).draw()
    assert [tuple(value.shape) for value in inputs] == [(4, 2), (1, 5)]
    assert wanted.shape == (4, 2)

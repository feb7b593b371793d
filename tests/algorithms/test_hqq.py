"""HQQ: scales fitted to weights alone."""

import pytest
import torch

import detent
from detent.algorithms import hqq
from detent.algorithms.hqq_core import half_quadratic
from tests.algorithms.nets import Mlp, ready, vectors

W3 = {"bits": 3, "granularity": {"per_group": 8}, "quantizer": "fixed"}


def cost(rows, scale, zero, ends):
    codes = (torch.round(rows / scale) + zero).clamp(*ends)
    return (rows - (codes - zero) * scale).abs().pow(0.7).sum(1)


def test_one_weight_off_the_grid_of_the_others_counts_less_than_in_squares():
    # Seven weights are whole steps of 0.5; the range is set by 1.7. Least squares has steps of 17.1 / 33 = 0.518.
    row = torch.tensor([[0.5, -0.5, 1.0, -1.0, 0.5, -1.5, 1.0, 1.7]])
    zero = torch.zeros(1, 1)
    scale, _ = half_quadratic(row, torch.tensor([[1.7 / 3]]), zero, (-4, 3), symmetric=True)
    assert 0.5 <= scale.item() < 17.1 / 33
    for other in (1.7 / 3, 17.1 / 33):
        assert cost(row, scale, zero, (-4, 3)) < cost(row, torch.tensor([[other]]), zero, (-4, 3))


@pytest.mark.parametrize("symmetric", [True, False], ids=["symmetric", "affine"])
def test_no_row_gets_worse(symmetric):
    rows = torch.randn(50, 32, generator=torch.Generator().manual_seed(0))
    ends = (-4, 3) if symmetric else (0, 7)
    start = (rows.amax(1, keepdim=True) - rows.amin(1, keepdim=True)) / 7
    zero = torch.zeros(50, 1) if symmetric else (-rows.amin(1, keepdim=True) / start).round()
    scale, found = half_quadratic(rows, start, zero, ends, symmetric=symmetric)
    assert (cost(rows, scale, found, ends) <= cost(rows, start, zero, ends) + 1e-4).all()
    assert torch.equal(found, found.round())
    assert (scale > 0).all()


def test_scales_are_those_that_can_be_stored():
    rows = torch.randn(20, 32, generator=torch.Generator().manual_seed(0))
    start = (rows.abs().amax(1, keepdim=True) / 3).half().float()
    zero = torch.zeros(20, 1)
    scale, _ = half_quadratic(rows, start, zero, (-4, 3), symmetric=True, snap=lambda s: s.half().float())
    assert torch.equal(scale, scale.half().float())
    assert not torch.equal(scale, start)


def test_it_does_not_look_at_the_data():
    torch.manual_seed(0)
    net = Mlp()
    scales = []
    for factor in (1, 7):
        prepared = ready(net, [factor * x for x in vectors()], weight=W3, activation={"quantize": False})
        report = hqq(prepared, [])
        assert [change.kept for change in report.changes] == [True] * 3
        assert report.metric == "mean |w - q(w)| ** 0.7 of weights"
        scales.append(prepared.left.parametrizations.weight[0].scale.clone())
    assert torch.equal(*scales)


def test_other_quantizers_are_left_alone():
    prepared = ready(Mlp(), vectors(), weight={**W3, "quantizer": "lsq"}, activation={"quantize": False})
    assert set(hqq(prepared, []).skipped.values()) == {
        "its scales are not free; use the quantizer fixed on integers with float scales"
    }


def test_the_recipe_runs_it():
    net, data = Mlp(32), vectors(dim=32)
    prepared = detent.prepare(net.eval(), (data[0],), backend="academic_nlp", recipe="w4g32_hqq")
    detent.calibrate(prepared, data)
    assert prepared.algorithm_notes[0].algorithm == "hqq"

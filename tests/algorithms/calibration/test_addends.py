"""Sums on nested grids: one rounding instead of two, and where it does not apply."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import detent
from detent.algorithms import align_addends
from detent.graph import quantizers_of
from detent.numerics import IntGrid, PerTensor, QParams, Rounding, Scheme, fake_quantize
from tests.algorithms.nets import Chain, noise, ready

HALF_UP = Scheme(
    grid=IntGrid(8), symmetric=True, granularity=PerTensor(), scale="power_of_two", rounding=Rounding.HALF_UP
)


def on(x, step):
    return fake_quantize(x, QParams.symmetric(torch.tensor(step)), HALF_UP)


@given(st.lists(st.floats(-3, 3, width=32), min_size=1, max_size=30), st.integers(-30, 30), st.integers(1, 5))
def test_the_sum_is_never_farther_from_the_truth(values, code, finer):
    branch, trunk, step = torch.tensor(values), code / 16, 1 / 16
    wanted = branch + trunk
    once = on(on(branch, step) + trunk, step)
    twice = on(on(branch, step / 2**finer) + trunk, step)
    assert bool(((once - wanted).abs() <= (twice - wanted).abs()).all())


def test_rounding_twice_adds_half_a_step_of_the_finer_grid():
    branch = torch.arange(-4096, 4096) / 2048 + 1 / 4096  # evenly spread in [-2, 2)
    twice = on(on(branch, 1 / 32), 1 / 16) - branch
    once = on(branch, 1 / 16) - branch
    assert twice.mean().item() == pytest.approx(1 / 64, rel=1e-6)
    assert once.mean().item() == pytest.approx(0, abs=1e-7)


class Branch(nn.Module):
    def __init__(self, *, used_again=False):
        super().__init__()
        self.first, self.second, self.last = nn.Conv2d(3, 4, 3), nn.Conv2d(4, 4, 1), nn.Conv2d(4, 2, 1)
        self.used_again = used_again

    def forward(self, x):
        x = torch.relu(self.first(x))
        y = self.second(x)
        out = self.last(torch.relu(x + y))
        return out + self.last(y) if self.used_again else out


def with_steps(net, *, backend="vitis", **steps):
    """Calibrated, then with these steps of the activations."""
    data = [torch.randn(4, 3, 8, 8)]
    prepared = ready(net, data, backend=backend)
    found = {quantizer.name: quantizer for quantizer in quantizers_of(prepared)}
    for name, step in steps.items():
        found[name].initialize(QParams.symmetric(torch.tensor(step)))
    return prepared, found


@pytest.mark.parametrize(
    ("steps", "changed"),
    [
        ({"relu": 1 / 16, "second": 1 / 64, "relu_1": 1 / 16}, ["second"]),
        ({"relu": 1 / 8, "second": 1 / 64, "relu_1": 1 / 16}, ["second"]),
        ({"relu": 1 / 16, "second": 1 / 16, "relu_1": 1 / 16}, []),
        ({"relu": 1 / 16, "second": 1 / 8, "relu_1": 1 / 16}, []),
        ({"relu": 1 / 32, "second": 1 / 32, "relu_1": 1 / 16}, []),  # rounding both would be two errors for one
        ({"relu": 1 / 32, "second": 1 / 16, "relu_1": 1 / 16}, []),  # what the next layer reads is left alone
    ],
    ids=["finer", "finer-beside-coarser", "equal", "coarser", "both-finer", "the-trunk-is"],
)
def test_where_it_fires(steps, changed):
    prepared, found = with_steps(Branch(), **steps)
    assert align_addends(prepared) == changed
    after = {name: float(found[name].qparams().scale) for name in steps}
    assert after == {**steps, **dict.fromkeys(changed, steps["relu_1"])}
    notes = [note for note in prepared.plan.notes if "step of their sum" in note]
    assert notes == (["addends with the step of their sum: second"] if changed else [])


def test_an_addend_that_others_read_keeps_its_step():
    prepared, found = with_steps(Branch(used_again=True), relu=1 / 16, second=1 / 64, relu_1=1 / 16)
    assert "second" not in align_addends(prepared)
    assert float(found["second"].qparams().scale) == 1 / 64


def test_float_scales_have_no_nested_grids():
    prepared, _ = with_steps(Branch(), backend="tensorrt")
    assert align_addends(prepared) == []


def test_calibrating_does_it_and_a_deep_trunk_does_not_drift(monkeypatch):
    net, data = Chain(), [torch.randn(8, 3, 12, 12) for _ in range(2)]
    with_it = ready(net, data, backend="vitis")
    assert any("step of their sum" in note for note in with_it.plan.notes)
    monkeypatch.setattr("detent.calibrating.align_addends", lambda _: [])
    without = ready(net, data, backend="vitis")
    assert noise(with_it, net, data) < noise(without, net, data)

    def drift(prepared):
        with torch.no_grad():
            return float((prepared(data[0]) - net(data[0])).mean().abs())

    assert drift(with_it) < drift(without)


def test_calibrating_again_says_it_once():
    net, data = Chain(3), [torch.randn(4, 3, 8, 8)]
    prepared = ready(net, data, backend="vitis")
    detent.calibrate(prepared, data)
    assert sum("step of their sum" in note for note in prepared.plan.notes) <= 1

"""AutoRound: rounding and clipping by signs of gradients."""

import torch

from detent.algorithms import autoround, gptq
from detent.algorithms.autoround_core import signed_rounding
from tests.algorithms.nets import Mlp, noise, ready, vectors

W3 = {"weight": {"bits": 3, "granularity": {"per_group": 8}}, "activation": {"quantize": False}}
ONE = torch.tensor(1.0)


def correlated(rows, dim):
    return torch.randn(rows, dim // 4) @ torch.randn(dim // 4, dim) + 0.1 * torch.randn(rows, dim)


def test_one_of_two_equal_inputs_is_rounded_up():
    found, scale = signed_rounding(
        torch.tensor([0.45, 0.4]), ONE, (-4 * ONE, 3 * ONE), lambda w: (w.sum() - 0.85) ** 2, steps=50
    )
    assert torch.equal(found / scale, torch.tensor([1.0, 0.0]))
    assert abs(found.sum().item() - 0.85) < 0.15


def test_rounding_to_nearest_is_where_it_starts():
    weight = torch.tensor([0.4, -1.6, 5.0])
    found, scale = signed_rounding(weight, ONE, (-4 * ONE, 3 * ONE), lambda w: w.sum() * 0 + 1, steps=5)
    assert found.tolist() == [0.0, -2.0, 3.0]
    assert scale.item() == 1.0


def test_the_output_error_is_less_than_that_of_rounding_and_the_weight_lies_on_its_grid():
    torch.manual_seed(0)
    x, weight = correlated(400, 64), torch.randn(32, 64)
    gram = x.t() @ x
    start = weight.abs().amax(1, keepdim=True) / 3

    def loss(value):
        return ((value - weight) @ gram * (value - weight)).sum()

    found, scale = signed_rounding(weight, start, (-4 * ONE, 3 * ONE), loss)
    nearest = (weight / start).round().clamp(-4, 3) * start
    assert loss(found) < 0.5 * loss(nearest)
    assert (scale <= start).all()
    assert (scale >= start / 2).all()
    torch.testing.assert_close(found / scale, (found / scale).round())


def test_layers_of_a_network_after_gptq_too():
    torch.manual_seed(0)
    net, data = Mlp(), list(correlated(384, 16).split(64))
    prepared = ready(net, data, **W3)
    before = noise(prepared, net, data)
    report = autoround(prepared, data)
    assert [change.place for change in report.changes] == ["left", "right", "down"]
    assert all(change.kept for change in report.changes[:2])
    assert noise(prepared, net, data) < 0.7 * before
    weight = prepared.left.parametrizations.weight
    torch.testing.assert_close(weight[0](weight.original), weight.original, rtol=1e-5, atol=1e-6)
    again = autoround(prepared, data)
    assert again.changes[0].before > 0  # against the float weight, not against what the first run wrote
    both = ready(net, data, **W3)
    gptq(both, data)
    first = noise(both, net, data)
    autoround(both, data)
    assert noise(both, net, data) <= first


def test_other_quantizers_are_left_alone():
    data = vectors()
    prepared = ready(Mlp(), data, weight={**W3["weight"], "quantizer": "lsq"}, activation={"quantize": False})
    assert set(autoround(prepared, data).skipped.values()) == {
        "its scales are not free; use the quantizer fixed on integers with float scales"
    }

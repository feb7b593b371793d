"""Bias correction: the mean error of every channel is taken out; what batch norms know gives it without data."""

import math

import pytest
import torch
from torch import nn

from detent.algorithms import bias_correction
from detent.algorithms.bias_correction_core import clipped_normal_mean, expected_shift
from detent.errors import NotCalibratedError, RecipeError
from tests.algorithms.nets import Chain, Convs, images, noise, ready

THREE_BITS = {"weight": {"bits": 3, "granularity": "per_tensor"}}


def test_the_mean_of_a_clipped_normal_is_what_samples_give():
    mean, deviation = torch.tensor([-1.0, 0.0, 2.0, 7.0]), torch.tensor([1.0, 2.0, 0.5, 3.0])
    x = mean + deviation * torch.randn(400_000, 4)
    # Three deviations of the mean of so many samples: 3 * 3 / sqrt(400000).
    torch.testing.assert_close(clipped_normal_mean(mean, deviation), x.clamp_min(0).mean(0), rtol=0, atol=0.015)
    torch.testing.assert_close(clipped_normal_mean(mean, deviation, 6.0), x.clamp(0, 6).mean(0), rtol=0, atol=0.015)


def test_the_expected_shift_is_that_of_a_convolution_without_borders():
    conv = nn.Conv2d(4, 6, 3, groups=2, bias=False)
    error = torch.randn_like(conv.weight) * 0.1
    mean = torch.tensor([1.0, 2.0, -1.0, 0.5])
    x = mean.reshape(1, -1, 1, 1).expand(1, 4, 5, 5)
    with torch.no_grad():
        shift = (nn.functional.conv2d(x, conv.weight + error, groups=2) - conv(x))[0, :, 0, 0]
    torch.testing.assert_close(expected_shift(error, mean, groups=2), shift, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("backend", ["onnxruntime", "academic"], ids=["bias", "batch-norm-behind"])
def test_channels_have_no_mean_error_left(backend):
    net, data = Convs(), images()
    prepared = ready(net, data, backend=backend, **(THREE_BITS if backend == "academic" else {}))
    if backend == "onnxruntime":  # 8 bits at most: make the weights worse by hand
        for layer in (prepared.expand, prepared.project):
            layer.parametrizations.weight[0].scale.mul_(20)
    before = noise(prepared, net, data)
    report = bias_correction(prepared, data)
    assert noise(prepared, net, data) < before
    assert [change.place for change in report.changes] == ["stem", "expand", "depthwise", "project", "fc"]
    assert all(change.after < change.before for change in report.changes if change.kept)
    # On the data it was learned from, the last layer has none at all.
    with torch.no_grad():
        error = torch.cat([prepared(x) - net(x) for x in data[:5]]).mean(0)
    scale = torch.cat([net(x) for x in data[:5]]).std().item()
    assert error.abs().max() < 0.05 * scale


def test_the_end_of_a_branch_is_corrected_for_the_sum(monkeypatch):
    """Sums that drift (the DPU's half_up, rounded twice): corrected where they show, they do not add up."""
    monkeypatch.setattr("detent.calibrating.align_addends", lambda _: [])
    net, data = Chain(), [torch.randn(8, 3, 10, 10) for _ in range(4)]
    prepared = ready(net, data, backend="vitis")

    def mean_error():
        with torch.no_grad():
            return float(torch.cat([prepared(x) - net(x) for x in data[:3]]).mean((0, 2, 3)).abs().max())

    drift, before = mean_error(), noise(prepared, net, data)
    report = bias_correction(prepared, data)
    assert report.outputs.kept
    assert mean_error() < 0.4 * drift
    assert noise(prepared, net, data) < before
    # The place of the last branch is the sum: what was measured is the error of the network's own output.
    assert report.changes[-1].place == "branches.11"


def test_a_bias_with_a_grid_of_its_own_gets_one_that_fits():
    """On vitis a bias has eight bits of its own: biases of 0.1 leave no room for a correction of 0.5."""
    net, data = nn.Sequential(nn.Conv2d(3, 4, 1)), [torch.randn(16, 3, 6, 6) + 3 for _ in range(4)]
    with torch.no_grad():
        net[0].bias.copy_(torch.tensor([0.1, -0.1, 0.05, 0.0]))
    prepared = ready(net, data, backend="vitis")
    layer = prepared.get_submodule("0")
    with torch.no_grad():
        layer.parametrizations.weight[0].scale.mul_(128)  # so coarse that most weights are zero

    def mean_error():
        with torch.no_grad():
            return float(torch.cat([prepared(x) - net(x) for x in data[:3]]).mean((0, 2, 3)).abs().max())

    before = mean_error()
    assert before > 0.3
    assert bias_correction(prepared, data).changes[0].kept
    assert float(layer.parametrizations.bias[0].qparams().scale) * 128 > 0.3
    assert mean_error() < 0.05 * before


def test_the_model_it_is_compared_with_stays_the_float_one():
    net, data = Convs(), images()
    prepared = ready(net, data, **THREE_BITS)
    first = bias_correction(prepared, data)
    assert any(change.kept for change in first.changes)
    again = bias_correction(prepared, data)
    # Were the corrected model the new target, the error before would be larger than the error it ended with.
    last = {change.place: min(change.before, change.after) for change in first.changes}
    assert again.changes[-1].before == pytest.approx(last["fc"], rel=0.05)


@pytest.mark.parametrize("strategy", [-1, 1])
def test_analytic_from_the_statistics_of_batch_norms(strategy):
    """Data whose statistics are those of the batch norms: then what they predict is what happens."""
    net, data = Convs(), images()
    net.train()
    for module in net.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.momentum = None
    with torch.no_grad():
        for x in data:
            net(x)
    prepared = ready(net, data, batch_norm={"strategy": strategy}, **THREE_BITS)
    before = noise(prepared, net, data)
    report = bias_correction(prepared, data, method="analytic")
    assert {change.place for change in report.changes} == {"expand", "depthwise", "project"}
    assert sum(change.kept for change in report.changes) >= 2
    assert noise(prepared, net, data) < before
    assert report.skipped["stem"] == "no batch norm is left before it whose statistics could be used"


def test_merged_batch_norms_know_nothing_any_more():
    data = images()
    prepared = ready(Convs(), data, backend="onnxruntime")
    report = bias_correction(prepared, data, method="analytic")
    assert report.changes == ()
    assert set(report.skipped.values()) == {"no batch norm is left before it whose statistics could be used"}


def test_refusals(refuses):
    data = images()
    with refuses(RecipeError, "bias correction by 'guess'", "no such method", "use 'empirical' or 'analytic'"):
        bias_correction(ready(Convs(), data), data, method="guess")
    with pytest.raises(NotCalibratedError, match="calibrate first"):
        bias_correction(ready(Convs(), data, calibrated=False), data)


def test_a_nan_never_counts_as_better():
    from detent.algorithms.common.report import better

    assert not better(math.nan, 1.0)
    assert not better(1.0, math.nan)
    assert not better(1.0, 1.0)
    assert better(1.0, 0.5)

"""Equalization: the float network stays the same, the weights of a channel become equal on both sides."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from detent.algorithms import equalize
from detent.algorithms.common.chains import pairs_of
from detent.algorithms.common.floating import as_float
from detent.algorithms.common.layers import layers_of, modules_of
from detent.algorithms.equalization_core import (
    absorbable,
    absorbed_shift,
    equalizing,
    ranges_of_inputs,
    ranges_of_outputs,
    scale_inputs,
)
from detent.errors import RecipeError
from tests.algorithms.nets import Convs, images, noise, ready

PER_TENSOR = {"weight": {"granularity": "per_tensor"}}


def lopsided(net):
    """The same float function, with the channels between expand and depthwise, and behind it, of very unequal size."""
    for first, second in ((net.bn1, net.depthwise), (net.bn2, net.project)):
        scale = torch.exp2(torch.linspace(-4, 4, 24))[torch.randperm(24)]
        with torch.no_grad():
            first.weight.mul_(scale)
            first.bias.mul_(scale)
            shape = (-1, 1, 1, 1) if second.groups > 1 else (1, -1, 1, 1)
            second.weight.div_(scale.reshape(shape))
    return net


# ---- core ----


def test_ranges_of_a_grouped_convolution():
    weight = torch.arange(1.0, 9.0).reshape(4, 2, 1, 1)  # two groups of two outputs and two inputs
    assert ranges_of_outputs(weight).tolist() == [2, 4, 6, 8]
    assert ranges_of_inputs(weight, groups=2).tolist() == [3, 4, 7, 8]


def test_ranges_of_a_transposed_convolution():
    weight = torch.arange(1.0, 9.0).reshape(4, 2, 1, 1)  # four inputs in two groups, two outputs in each
    assert ranges_of_inputs(weight, transposed=True, groups=2).tolist() == [2, 4, 6, 8]
    assert ranges_of_outputs(weight, transposed=True, groups=2).tolist() == [3, 4, 7, 8]


@given(st.lists(st.tuples(st.floats(1e-3, 1e3), st.floats(1e-3, 1e3)), min_size=1, max_size=6))
@settings(max_examples=50, deadline=None)
def test_scales_make_both_sides_equal(ranges):
    first, second = (torch.tensor(side) for side in zip(*ranges, strict=True))
    scale = equalizing(first, second)
    torch.testing.assert_close(first / scale, second * scale)


def test_inputs_are_scaled_within_their_group():
    weight = torch.ones(4, 2, 1, 1)
    scaled = scale_inputs(weight, torch.tensor([1.0, 2.0, 3.0, 4.0]), groups=2)
    assert scaled.flatten(1).tolist() == [[1, 2], [1, 2], [3, 4], [3, 4]]


def test_an_absorbed_bias_is_what_the_next_layer_loses():
    conv = nn.Conv2d(4, 6, 3, groups=2)
    x, off = torch.randn(2, 4, 5, 5), torch.tensor([1.0, 0.5, 0.0, 2.0])
    with torch.no_grad():
        lost = conv(x) - conv(x - off.reshape(1, -1, 1, 1))
    shift = absorbed_shift(conv.weight, off, groups=2)
    torch.testing.assert_close(lost, shift.reshape(1, -1, 1, 1).expand_as(lost), rtol=1e-4, atol=1e-5)


def test_nothing_is_absorbed_that_the_relu_would_have_cut():
    assert absorbable(torch.tensor([4.0, -1.0]), torch.tensor([1.0, 1.0])).tolist() == [1.0, 0.0]


# ---- pairs ----


def test_pairs_pass_through_activations_and_quantizers_only():
    prepared = ready(Convs(), images(1), backend="onnxruntime")
    found = [pair.name for pair in pairs_of(layers_of(prepared), modules_of(prepared))]
    assert found == ["expand -> depthwise", "depthwise -> project"]  # stem has two users, project is added to


@pytest.mark.parametrize("act", [nn.Sigmoid, nn.Hardswish])
def test_no_pair_through_what_is_not_homogeneous(act):
    prepared = ready(Convs(act), images(1), backend="onnxruntime")
    assert pairs_of(layers_of(prepared), modules_of(prepared)) == []


# ---- the network ----


@pytest.mark.parametrize("act", [nn.ReLU, nn.PReLU], ids=["relu", "prelu"])
def test_the_float_network_is_the_same_and_the_quantized_one_nearer(act):
    net, data = lopsided(Convs(act)), images()
    prepared = ready(net, data, backend="onnxruntime", calibrated=False, cpu="vnni", **PER_TENSOR)
    report = equalize(prepared, data)
    (change,) = report.changes
    assert change.kept
    assert change.after < change.before / 3
    with torch.no_grad(), as_float(prepared):
        torch.testing.assert_close(prepared(data[0]), net(data[0]), rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(
        ranges_of_outputs(prepared.expand.parametrizations.weight.original),
        ranges_of_inputs(prepared.depthwise.parametrizations.weight.original, groups=24),
        rtol=1e-2,
        atol=1e-6,
    )
    assert report.notes == ("expand -> depthwise", "depthwise -> project")
    assert prepared.algorithm_notes == [report]
    assert report.summary() in prepared.plan.notes


def test_folded_batch_norms_take_the_scales():
    net, data = lopsided(Convs()), images()
    prepared = ready(net, data, backend="onnxruntime", calibrated=False, batch_norm={"strategy": 1}, **PER_TENSOR)
    (change,) = equalize(prepared, data).changes
    assert change.kept
    with torch.no_grad(), as_float(prepared):
        torch.testing.assert_close(prepared(data[0]), net(data[0]), rtol=1e-3, atol=1e-4)


def test_a_relu6_loses_its_ceiling_and_the_plan_says_so():
    net, data = lopsided(Convs(nn.ReLU6)), images()
    prepared = ready(net, data, backend="onnxruntime", calibrated=False, **PER_TENSOR)
    before = [entry.kind for entry in prepared.plan].count("relu6")
    report = equalize(prepared, data)
    assert report.changes[0].kept
    assert "without the ceiling of its ReLU6" in report.notes[0]
    assert [entry.kind for entry in prepared.plan].count("relu6") == before - 2
    calls = [node.target for node in prepared.graphs["forward"].nodes]
    assert "act0" in calls
    assert "act1" not in calls


def test_relu6_can_be_left_alone():
    data = images()
    prepared = ready(lopsided(Convs(nn.ReLU6)), data, backend="onnxruntime", calibrated=False, **PER_TENSOR)
    report = equalize(prepared, data, relu6=False)
    assert report.changes == ()


def test_what_does_not_help_is_rolled_back():
    # A ReLU6 that clips nearly everything: without its ceiling this is another network.
    net, data = Convs(nn.ReLU6), images()
    with torch.no_grad():
        net.bn1.bias.add_(20)
        net.bn1.weight.mul_(10)
    prepared = ready(net, data, backend="onnxruntime", calibrated=False, weight={"granularity": "per_channel"})
    weight = prepared.expand.parametrizations.weight.original.clone()
    report = equalize(prepared, data)
    assert [change.kept for change in report.changes] == [False]
    assert torch.equal(prepared.expand.parametrizations.weight.original, weight)
    assert "act1" in [node.target for node in prepared.graphs["forward"].nodes]
    assert noise(prepared, net, data) < 0.05
    assert any("rolled back" in note for note in prepared.plan.notes)


def test_biases_that_hold_a_relu_open_are_absorbed():
    net, data = Convs(), images()
    with torch.no_grad():
        net.bn2.bias[::6] += 50 * net.bn2.weight[::6]
        net.project.weight[:, ::6] *= torch.tensor([1.0, -1.0, 1.0, -1.0]).reshape(1, -1, 1, 1)
    absorbing = ready(net, data, backend="onnxruntime", calibrated=False, **PER_TENSOR)
    plain = ready(net, data, backend="onnxruntime", calibrated=False, **PER_TENSOR)
    with_it, without = equalize(absorbing, data), equalize(plain, data, absorb=False)
    assert with_it.changes[0].note.endswith(", biases absorbed")
    assert with_it.changes[0].after < without.changes[0].after
    with torch.no_grad(), as_float(absorbing):
        torch.testing.assert_close(absorbing(data[0]), net(data[0]), rtol=2e-3, atol=2e-3)
    assert absorbing.depthwise.bias.abs().max() < 0.2 * plain.depthwise.bias.abs().max()


def test_after_another_algorithm_it_is_refused(refuses):
    from detent.algorithms import bias_correction

    data = images()
    prepared = ready(Convs(), data, backend="onnxruntime")
    bias_correction(prepared, data)
    with refuses(
        RecipeError,
        "equalize on this model",
        "another algorithm has already changed its weights",
        "run equalize first",
    ):
        equalize(prepared, data)

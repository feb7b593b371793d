"""GPTQ: columns that make up for each other; groups, order, work."""

from typing import ClassVar

import pytest
import torch
from torch import nn

import detent
from detent.algorithms import gptq
from detent.algorithms.gptq_core import gptq_weight
from tests.algorithms.nets import Convs, Mlp, images, noise, ready, vectors

W3 = {"weight": {"bits": 3, "granularity": "per_channel", "observer": "mse"}}


def correlated(rows, dim):
    """Inputs that go together, so that one column can make up for another."""
    return torch.randn(rows, dim // 4) @ torch.randn(dim // 4, dim) + 0.1 * torch.randn(rows, dim)


def whole(values, _column):
    return torch.round(values)


def test_by_hand():
    # Two equal inputs: what the first column loses by 0.4 -> 0, the second takes over: 0.4 + 0.4 -> 1.
    gram = torch.ones(2, 2)
    found = gptq_weight(torch.tensor([[0.4, 0.4]]), gram, whole, damping=1e-4, act_order=False)
    assert found.tolist() == [[0.0, 1.0]]


def test_independent_inputs_are_rounded_to_nearest():
    weight = torch.randn(5, 7) * 3
    found = gptq_weight(weight, torch.diag(torch.rand(7) + 0.5), whole)
    assert torch.equal(found, weight.round())


def test_inputs_that_are_always_zero_take_no_part():
    gram = torch.zeros(3, 3)
    gram[:2, :2] = torch.eye(2)
    found = gptq_weight(torch.tensor([[1.2, 2.7, 5.4]]), gram, whole)
    assert found.tolist() == [[1.0, 3.0, 0.0]]


@pytest.mark.parametrize("act_order", [True, False])
def test_the_output_error_is_less_than_that_of_rounding(act_order):
    x, weight = correlated(400, 64), torch.randn(32, 64)
    step = weight.abs().amax() / 3

    def to_grid(values, _column):
        return torch.clamp(torch.round(values / step), -4, 3) * step

    found = gptq_weight(weight, x.t() @ x, to_grid, act_order=act_order)
    nearest = to_grid(weight, None)
    assert (x @ (found - weight).t()).square().mean() < 0.5 * (x @ (nearest - weight).t()).square().mean()
    assert torch.equal(found, to_grid(found, None))


def test_the_grid_is_asked_for_the_columns_by_their_own_place():
    asked = []

    def to_grid(values, column):
        asked.append(column)
        return torch.round(values)

    gptq_weight(torch.randn(2, 5), torch.diag(torch.tensor([1.0, 5.0, 3.0, 2.0, 4.0])), to_grid, act_order=True)
    assert asked == [1, 4, 2, 3, 0]


class Watched(torch.Tensor):
    """Remembers the shapes of what it is multiplied with, as a matrix."""

    products: ClassVar[list] = []

    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        if function in (torch.matmul, torch.Tensor.matmul, torch.Tensor.__matmul__):
            cls.products.append(tuple(tuple(factor.shape) for factor in args))
        return super().__torch_function__(function, types, args, kwargs)


def test_later_columns_make_up_by_one_product_of_matrices_for_each_block_of_128():
    """What keeps it fast: column by column, a layer of 4096 inputs would move 32 times the memory."""
    x, weight = correlated(800, 300), torch.randn(32, 300)
    found = gptq_weight(weight.as_subclass(Watched), x.t() @ x, whole)
    assert Watched.products == [((172, 128), (128, 32)), ((44, 128), (128, 32)), ((0, 44), (44, 32))]
    assert (x @ (found - weight).t()).square().mean() < 0.5 * (x @ (weight.round() - weight).t()).square().mean()


@pytest.mark.parametrize("granularity", ["per_channel", {"per_group": 4}], ids=["channels", "groups"])
def test_linear_layers_of_a_network(granularity):
    net, data = Mlp(), list(correlated(384, 16).split(64))
    request = {"weight": {**W3["weight"], "granularity": granularity}}
    prepared = ready(net, data, **request, activation={"bits": 16})
    for layer in (prepared.left, prepared.right, prepared.down):
        layer.parametrizations.weight[0].scale.mul_(20)  # what the academic backend keeps at 8 bits is made coarse
    before = noise(prepared, net, data)
    report = gptq(prepared, data)
    assert [change.place for change in report.changes] == ["left", "right", "down"]
    assert all(change.kept for change in report.changes[:2])
    assert noise(prepared, net, data) < before
    weight = prepared.left.parametrizations.weight
    torch.testing.assert_close(weight[0](weight.original), weight.original, rtol=1e-5, atol=1e-6)


def test_convolutions_too_unless_told_otherwise():
    net, data = Convs(), images()
    prepared = ready(net, data, batch_norm={"strategy": 0}, **W3)
    before = noise(prepared, net, data)
    report = gptq(prepared, data)
    assert {change.place for change in report.changes} == {"stem", "expand", "depthwise", "project", "fc"}
    assert noise(prepared, net, data) < before
    again = gptq(ready(net, data, **W3), data, convs=False)
    assert [change.place for change in again.changes] == ["fc"]
    assert again.skipped["stem"] == "only linear layers were asked for"


def test_a_second_run_is_compared_with_the_float_model_of_the_first():
    net, data = Convs(), images()
    prepared = ready(net, data, batch_norm={"strategy": 0}, **W3)
    gptq(prepared, data)
    again = gptq(prepared, data)
    assert all(change.before > 0 for change in again.changes)  # its weights are on the grid, yet not exact


def test_quantizers_that_move_grid_points_are_left_alone():
    data = images()
    prepared = ready(Convs(), data, weight={"quantizer": "adaround", "bits": 4})
    assert set(gptq(prepared, data).skipped.values()) == {
        "its quantizer would move a weight that lies on the grid; use fixed or lsq"
    }


def test_the_recipe_runs_it():
    data = vectors()
    prepared = detent.prepare(Mlp().eval(), (data[0],), backend="onnxruntime", recipe="gptq")
    detent.calibrate(prepared, data)
    assert prepared.algorithm_notes[0].algorithm == "gptq"


def test_shared_layers_are_left_alone():
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(16, 16)

        def forward(self, x):
            return self.layer(torch.relu(self.layer(x)))

    data = vectors()
    assert gptq(ready(Twice(), data, **W3), data).skipped == {"layer": "it is called 2 times"}

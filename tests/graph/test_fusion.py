"""Chains of operations that run as one: where a pattern fires and where it does not."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from detent.graph import fuse
from tests.graph.nets import Net, captured_of

PATTERNS = (("conv", "relu"), ("conv", "batchnorm"), ("conv", "batchnorm", "relu"), ("add", "relu"))


def chains(forward, patterns=PATTERNS, **parts):
    """The chains found in a network, as the names of their nodes."""
    given = {"conv": nn.Conv2d(4, 4, 1), "bn": nn.BatchNorm2d(4), "relu": nn.ReLU(), **parts}
    _, region, graph = captured_of(Net(forward, **given), torch.randn(2, 4, 5, 5))
    found = fuse(graph, dict(region.named_modules()), patterns)
    for node, chain in found.items():
        assert node in chain
        assert all(found[member] is chain for member in chain)
    return sorted({tuple(node.name for node in chain) for chain in found.values()})


@pytest.mark.parametrize(
    ("forward", "found"),
    [
        pytest.param(lambda n, x: n.relu(n.conv(x)), [("conv", "relu")], id="conv-relu"),
        pytest.param(lambda n, x: F.relu(n.conv(x)), [("conv", "relu")], id="conv-functional-relu"),
        pytest.param(lambda n, x: n.conv(x).relu(), [("conv", "relu")], id="conv-relu-method"),
        pytest.param(lambda n, x: n.bn(n.conv(x)), [("conv", "bn")], id="conv-bn"),
        pytest.param(lambda n, x: n.relu(n.bn(n.conv(x))), [("conv", "bn", "relu")], id="the-longest-wins"),
        pytest.param(lambda n, x: n.relu(x + n.conv(x)), [("add", "relu")], id="add-relu"),
        pytest.param(lambda n, x: n.relu(x + n.bn(n.conv(x))), [("add", "relu"), ("conv", "bn")], id="two-chains"),
        pytest.param(
            lambda n, x: n.relu(n.conv(n.relu(n.conv(x)))), [("conv", "relu"), ("conv_1", "relu_1")], id="called-twice"
        ),
        pytest.param(lambda n, x: torch.sigmoid(n.relu(n.conv(x))), [("conv", "relu")], id="last-one-has-a-user"),
    ],
)
def test_a_pattern_fires(forward, found):
    assert chains(forward) == found


def conv_used_twice(net, x):
    y = net.conv(x)
    return net.relu(y) + y


def norm_used_twice(net, x):
    y = net.bn(net.conv(x))
    return net.relu(y) * y


def conv_is_an_output_too(net, x):
    y = net.conv(x)
    return y, net.relu(y)


def last_used_twice(net, x):
    y = net.relu(net.conv(x))
    return y * y.sigmoid()


@pytest.mark.parametrize(
    ("forward", "found"),
    [
        pytest.param(lambda n, x: n.conv(n.relu(x)), [], id="wrong-order"),
        pytest.param(lambda n, x: n.conv(n.bn(x)), [], id="norm-before-conv"),
        pytest.param(lambda n, x: n.conv(x), [], id="alone"),
        pytest.param(lambda n, x: torch.sigmoid(n.conv(x)), [], id="another-activation"),
        pytest.param(conv_used_twice, [], id="second-user"),
        pytest.param(conv_is_an_output_too, [], id="also-an-output"),
        pytest.param(norm_used_twice, [("conv", "bn")], id="second-user-after-two"),
        pytest.param(last_used_twice, [("conv", "relu")], id="second-user-of-the-last"),
        pytest.param(lambda n, x: n.relu(n.conv(x).flatten(1)), [], id="something-between"),
    ],
)
def test_a_pattern_does_not_fire(forward, found):
    assert chains(forward) == found


def test_the_order_of_the_patterns_does_not_matter():
    def forward(net, x):
        return net.relu(net.bn(net.conv(x)))

    assert chains(forward, PATTERNS) == chains(forward, PATTERNS[::-1]) == [("conv", "bn", "relu")]


def test_a_node_belongs_to_one_chain():
    found = chains(lambda n, x: n.relu(n.bn(n.conv(x))), (("conv", "batchnorm"), ("batchnorm", "relu")))
    assert found == [("conv", "bn")]


def test_without_patterns_nothing_is_fused():
    assert chains(lambda n, x: n.relu(n.conv(x)), ()) == []

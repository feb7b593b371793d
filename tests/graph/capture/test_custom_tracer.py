"""A tracer of the user's own, and operations of which Detent knows nothing."""

from __future__ import annotations

import pytest
import torch
from torch import fx, nn

import detent
from detent.errors import CaptureError, RecipeError
from detent.graph import CustomTracer, capture

IMAGES = torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(0))


class Head(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 2)

    def forward(self, x):
        return self.fc(x.mean((2, 3)))


def folded(x):
    """A function of the user's own."""
    return x.abs() - 1


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.head = nn.Conv2d(3, 4, 3), Head()

    def forward(self, x):
        return self.head(folded(self.conv(x)))


class Whole(CustomTracer):
    def is_leaf_module(self, m, module_qualified_name):
        return isinstance(m, Head) or super().is_leaf_module(m, module_qualified_name)


class WholeOfTorch(fx.Tracer):
    def is_leaf_module(self, m, module_qualified_name):
        return isinstance(m, Head) or super().is_leaf_module(m, module_qualified_name)


class Unfolded(CustomTracer):
    def trace(self, root, concrete_args=None):
        graph = super().trace(root, concrete_args)
        for node in [one for one in graph.nodes if one.target == "abs"]:
            node.replace_all_uses_with(node.args[0])
            graph.erase_node(node)
        return graph


def names(**options) -> list[str]:
    captured = capture(Net(), (IMAGES,), **options)
    return [node.name for node in captured.regions[""].graphs["forward"].nodes]


def test_without_one_all_is_traced_into():
    assert names() == ["x", "conv", "abs_1", "sub", "mean", "head_fc", "output"]


@pytest.mark.parametrize("tracer", [Whole(), WholeOfTorch()], ids=["ours", "torch"])
def test_leaves_are_those_that_the_tracer_says(tracer):
    assert names(tracer=tracer) == ["x", "conv", "abs_1", "sub", "head", "output"]


def test_the_graph_may_be_edited():
    prepared = detent.prepare(Net(), (IMAGES,), backend="tensorrt", tracer=Unfolded())
    assert "abs_1" not in {entry.tensor for entry in prepared.plan}
    assert not prepared.plan.notes


def test_outside_of_capturing_there_is_nothing_to_trace():
    with pytest.raises(CaptureError, match="hand the tracer to prepare"):
        Whole().trace(Net())


def test_own_operations_stay_one_node_and_get_quantized_inputs():
    assert names(own_operations=(Head, folded)) == ["x", "conv", "folded", "head", "output"]
    prepared = detent.prepare(Net(), (IMAGES,), backend="tensorrt", own_operations=(Head, folded))
    why = {entry.tensor: entry.why for entry in prepared.plan.quantized if entry.role == "activation"}
    assert why == {"x": "input of conv", "conv": "input of function folded", "folded": "input of Head"}


def test_chosen_activations_are_those_that_are_quantized():
    seen: list[str] = []

    def choose(model: fx.GraphModule, nodes: list[fx.Node]) -> list[fx.Node]:
        seen.extend(node.name for node in nodes)
        return [node for node in model.graph.nodes if node.name in ("conv", "abs_1")]

    prepared = detent.prepare(Net(), (IMAGES,), backend="tensorrt", choose_activations=choose)
    assert seen == ["x", "sub", "mean"]
    chosen = [entry.tensor for entry in prepared.plan.quantized if entry.role == "activation"]
    assert chosen == ["conv", "abs_1"]
    assert prepared.plan["x"].reason == "the backend's own rule leaves it out"


def test_what_is_no_tensor_cannot_be_chosen():
    def choose(model: fx.GraphModule, _: list[fx.Node]) -> list[fx.Node]:
        return [node for node in model.graph.nodes if node.op == "output"]

    with pytest.raises(RecipeError, match="not a tensor of real numbers"):
        detent.prepare(Net(), (IMAGES,), backend="tensorrt", choose_activations=choose)

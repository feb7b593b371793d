"""Where a network is cut into blocks."""

import torch

import detent
from detent.algorithms.common.blocks import blocks_of
from detent.algorithms.common.layers import layers_of, modules_of
from tests.algorithms.nets import Convs, Mlp, images, ready, vectors
from tests.graph.nets import made
from tests.models import resnet20


def names(prepared):
    graph = next(iter(prepared.graphs.values()))
    return [block.name for block in blocks_of(graph, modules_of(prepared), layers_of(prepared))]


def test_residual_blocks_are_whole():
    net = resnet20(width=0.25, depth=2).eval()
    prepared = ready(net, [torch.randn(2, 3, 16, 16)])
    blocks = [f"layer{stage}.{i}.conv1 .. layer{stage}.{i}.conv2" for stage in (1, 2, 3) for i in (0, 1)]
    assert names(prepared) == ["conv1", *blocks, "linear"]


def test_every_backend_cuts_at_the_same_places():
    net, data = Convs(), images(1)
    expected = ["stem", "expand .. project", "fc"]
    for backend in ("academic", "onnxruntime", "openvino", "vitis", "tensorrt"):
        assert names(ready(net, data, backend=backend)) == expected


def test_a_block_ends_behind_its_activation_and_begins_with_its_quantizers():
    prepared = ready(Convs(), images(1), backend="onnxruntime")
    graph = next(iter(prepared.graphs.values()))
    stem, middle, head = blocks_of(graph, modules_of(prepared), layers_of(prepared))
    assert stem.output.target == "act0"
    assert middle.output.name == "relu"
    assert str(middle.nodes[0].target).startswith("activation_quantizers.")
    assert str(head.nodes[0].target).startswith("activation_quantizers.")
    assert middle.inputs == (stem.output,)
    # Pooling belongs to what comes behind it: averages would say less about the block.
    assert [node.name for node in head.nodes if node.op == "call_method"] == ["mean"]


def test_three_layers_of_a_chain_make_a_block():
    net = torch.nn.Sequential(*[part for _ in range(7) for part in (torch.nn.Linear(16, 16), torch.nn.ReLU())])
    assert names(ready(net, vectors(1))) == ["0 .. 4", "6 .. 10", "12"]


def test_a_block_takes_any_activation_behind_it():
    net = torch.nn.Sequential(torch.nn.Linear(16, 16), torch.nn.Softshrink(), torch.nn.Linear(16, 16))
    prepared = ready(net, vectors(1), backend="academic_nlp")
    first, *_ = blocks_of(next(iter(prepared.graphs.values())), modules_of(prepared), layers_of(prepared))
    assert "1" in [str(node.target) for node in first.nodes]


def test_what_only_inputs_go_into_stands_in_no_ones_way():
    # The normalized input is used by both layers, and the input once more at the end.
    assert names(ready(Mlp(), vectors(1))) == ["left", "right", "down"]


def test_a_mask_is_no_obstacle():
    net, inputs = made("bert_encoder")
    prepared = detent.prepare(net, inputs, backend="academic_nlp", recipe="ptq")
    found = names(prepared)
    assert len(found) > 2
    assert len({layer.name for layer in layers_of(prepared)}) >= len(found)

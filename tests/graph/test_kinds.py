"""What is true of each kind of operation."""

from __future__ import annotations

import pytest
from torch import fx, nn

from detent.graph import (
    ACTIVATIONS,
    AVERAGE_POOLS,
    CLIPPING,
    KINDS,
    MULTIPLYING,
    POOLS,
    REORDERING,
    called_module,
)


def test_every_kind_is_listed_under_its_own_name():
    assert {name: kind.name for name, kind in KINDS.items()} == {name: name for name in KINDS}


def test_the_vocabulary_of_the_design_is_there():
    words = """conv conv_transpose linear matmul add mul concat relu relu6 clip hardswish silu gelu sigmoid softmax
    layernorm batchnorm maxpool avgpool global_avgpool resize reshape transpose slice pad embedding"""
    assert set(words.split()) <= set(KINDS)


@pytest.mark.parametrize("kind", [kind for kind in KINDS.values() if kind.moves], ids=lambda kind: kind.name)
def test_what_only_moves_values_keeps_their_sign(kind):
    assert kind.sign == 0


@pytest.mark.parametrize(
    ("kind", "axis"), [("conv", 0), ("conv_transpose", 1), ("linear", 0), ("embedding", 0)], ids=lambda v: str(v)
)
def test_the_axis_of_the_output_channels_of_a_weight(kind, axis):
    assert KINDS[kind].weight == {"weight": axis}


def test_what_networks_are_quantized_for():
    assert list(MULTIPLYING) == [
        *("conv", "conv_transpose", "linear", "embedding", "lstm", "gru"),
        *("matmul", "einsum"),
    ]


def test_what_gives_every_number_it_takes_in():
    assert list(REORDERING) == [
        *("reshape", "transpose", "expand", "pixel_shuffle"),
        *("identity", "dropout", "conv_pad", "quant_stub", "dequant_stub"),
    ]


def test_what_may_lie_in_the_memory_of_its_input():
    assert [name for name, kind in KINDS.items() if kind.aliases] == [
        *("reshape", "transpose", "slice", "expand"),
        *("identity", "dropout", "quant_stub", "dequant_stub"),
    ]


@pytest.mark.parametrize("trait", ["selects", "vanishes", "aliases"])
def test_only_what_moves_values(trait):
    having = [kind for kind in KINDS.values() if getattr(kind, trait)]
    assert having
    assert all(kind.moves for kind in having)


def test_pools_are_averages_and_maxima():
    assert list(AVERAGE_POOLS) == ["avgpool", "global_avgpool"]
    assert list(POOLS) == ["maxpool", "global_maxpool", *AVERAGE_POOLS]


def test_activation_functions_are_of_one_tensor_and_compute():
    assert set(CLIPPING) < set(ACTIVATIONS)
    assert {"gelu", "shrink", "tanh"} <= set(ACTIVATIONS)
    assert not {"softmax", "exp", "maxpool"} & set(ACTIVATIONS)
    assert all(KINDS[name].inputs == 1 and not KINDS[name].moves for name in ACTIVATIONS)


def test_the_module_that_a_node_calls():
    traced = fx.symbolic_trace(nn.Sequential(nn.ReLU()))
    x, called, output = traced.graph.nodes
    modules = dict(traced.named_modules())
    assert called_module(called, modules) is modules["0"]
    assert called_module(x, modules) is called_module(output, modules) is None

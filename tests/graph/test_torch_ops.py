"""One table: whatever torch calls an operation, it has one entry and one kind."""

from __future__ import annotations

import inspect
import operator
import re
from collections import Counter

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from detent.graph import KINDS, TORCH_OPS, kind_of, known_class, module_op, torch_op
from tests.graph.nets import Net, captured_of

X = (2, 4, 6, 6)


def kind_in(forward, *, x=None, **parts):
    """The kind of the node that gives the output of a one-operation network."""
    _, region, graph = captured_of(Net(forward, **parts), torch.randn(X) if x is None else x)
    (result,) = graph.output_node().all_input_nodes
    return kind_of(result, dict(region.named_modules()))


def name_in(forward, **given):
    kind = kind_in(forward, **given)
    return None if kind is None else kind.name


# --- the table ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("op", TORCH_OPS, ids=lambda op: op.name)
def test_every_entry_names_a_kind_that_exists(op):
    assert {op.kind, op.global_kind} - {""} <= set(KINDS)
    assert op.spellings


def test_every_operation_and_every_spelling_stands_in_the_table_once():
    names = [op.name for op in TORCH_OPS]
    spellings = [spelling for op in TORCH_OPS for spelling in op.spellings]
    assert [name for name, count in Counter(names).items() if count > 1] == []
    assert [spelling for spelling, count in Counter(spellings).items() if count > 1] == []


def test_every_method_of_the_table_is_a_method_of_tensors():
    names = [spelling for op in TORCH_OPS for spelling in op.spellings if isinstance(spelling, str)]
    assert "view" in names
    assert [name for name in names if not hasattr(torch.Tensor, name)] == []


def test_every_kind_that_no_entry_has():
    """Modules of our own declare these."""
    assert set(KINDS) - {op.kind for op in TORCH_OPS} - {op.global_kind for op in TORCH_OPS} == {
        *("quant_stub", "dequant_stub"),
        "conv_pad",  # of an ONNX file
        "opaque",  # which a user names
    }


@pytest.mark.parametrize("op", [op for op in TORCH_OPS if op.parameters], ids=lambda op: op.name)
def test_parameters_and_attributes_are_arguments_of_the_function_in_its_order(op):
    """`track_running_stats` and `padding_mode` are of modules alone, and the lowerings take them."""
    function = op.functions[-1]
    try:
        taken = list(inspect.signature(function).parameters)
    except ValueError:  # of C++: its docstring begins with the call
        taken = re.findall(r"[(,*]\s*(\w+)", function.__doc__.strip().split(" ->")[0])
    own = [name for name in op.parameters if name in taken]
    others = [name for name in op.attributes if name in taken]
    assert own == list(op.parameters)
    assert [*op.attributes] == [*others, *(n for n in ("padding_mode", "track_running_stats") if n in op.attributes)]
    assert sorted(own, key=taken.index) == own
    assert sorted(others, key=taken.index) == others


@pytest.mark.parametrize("kind", [name for name, kind in KINDS.items() if kind.weight])
def test_a_function_that_is_handed_a_weight_has_a_module_that_holds_it(kind):
    (op,) = [op for op in TORCH_OPS if op.kind == kind]
    names = [op.module_for(function).__name__.lower() for function in op.functions]
    assert names == [function.__name__.replace("_", "") for function in op.functions]
    assert "weight" in op.parameters


@pytest.mark.parametrize(
    ("spelling", "name", "kind"),
    [
        (nn.EmbeddingBag, "embedding_bag", "embedding_bag"),
        (nn.RReLU, "rrelu", "leaky_relu"),
        (F.rrelu, "rrelu", "leaky_relu"),
        ("half", "cast", "cast"),
        (nn.UpsamplingBilinear2d, "resize", "resize"),
        (torch.permute, "permute", "transpose"),
        ("permute", "permute", "transpose"),
        (nn.ReLU, "relu", "relu"),
        ("relu_", "relu", "relu"),
    ],
)
def test_the_entry_of_a_spelling(spelling, name, kind):
    op = torch_op(spelling)
    assert (op.name, op.kind) == (name, kind)


def test_what_is_not_in_the_table_has_no_entry():
    assert torch_op("logcumsumexp") is None
    assert module_op(nn.Softsign()) is None
    assert known_class(nn.Softsign()) is None


@pytest.mark.parametrize(
    ("module", "shape"),
    [
        (nn.Conv1d(3, 5, 1), (2, 3, 7)),
        (nn.Conv2d(3, 5, 1), (2, 3, 7, 7)),
        (nn.Conv3d(3, 5, 1), (2, 3, 4, 4, 4)),
        (nn.ConvTranspose1d(3, 5, 1), (2, 3, 7)),
        (nn.ConvTranspose2d(3, 5, 1), (2, 3, 7, 7)),
        (nn.ConvTranspose3d(3, 5, 1), (2, 3, 4, 4, 4)),
        (nn.Linear(3, 5), (2, 3)),
    ],
    ids=lambda v: type(v).__name__ if isinstance(v, nn.Module) else "",
)
def test_the_axis_of_a_weight_has_as_many_entries_as_the_operation_has_output_channels(module, shape):
    kind = kind_in(lambda net, x: net.op(x), op=module, x=torch.randn(shape))
    assert kind is not None
    assert kind.weight is not None
    (axis,) = kind.weight.values()
    assert module.weight.shape[axis] == 5


# --- synonyms ----------------------------------------------------------------------------------------------


def add_in_place(_, x):
    y = x * 1.0
    y += x
    return y


@pytest.mark.parametrize(
    "forward",
    [
        pytest.param(lambda _, x: x + x, id="plus"),
        pytest.param(lambda _, x: operator.add(x, x), id="operator.add"),
        pytest.param(add_in_place, id="plus-equals"),
        pytest.param(lambda _, x: torch.add(x, x), id="torch.add"),
        pytest.param(lambda _, x: torch.add(input=x, other=x), id="torch.add-by-keyword"),
        pytest.param(lambda _, x: x.add(x), id="Tensor.add"),
        pytest.param(lambda _, x: (x * 1.0).add_(x), id="Tensor.add_"),
        pytest.param(lambda _, x: 1.0 + x, id="number-first"),
    ],
)
def test_every_way_to_add_is_add(forward):
    assert name_in(forward) == "add"


@pytest.mark.parametrize(
    ("kind", "forward"),
    [
        ("mul", lambda _, x: x * x),
        ("mul", lambda _, x: torch.mul(x, x)),
        ("mul", lambda _, x: x.mul(x)),
        ("matmul", lambda _, x: x @ x),
        ("matmul", lambda _, x: torch.matmul(x, x)),
        ("matmul", lambda _, x: x.matmul(x)),
        ("concat", lambda _, x: torch.cat([x, x], 1)),
        ("concat", lambda _, x: torch.concat([x, x], 1)),
        ("relu", lambda _, x: F.relu(x)),
        ("relu", lambda _, x: torch.relu(x)),
        ("relu", lambda _, x: x.relu()),
        ("sigmoid", lambda _, x: torch.sigmoid(x)),
        ("sigmoid", lambda _, x: x.sigmoid()),
        ("softmax", lambda _, x: F.softmax(x, 1)),
        ("softmax", lambda _, x: x.softmax(1)),
        ("reshape", lambda _, x: x.flatten(1)),
        ("reshape", lambda _, x: torch.flatten(x, 1)),
        ("reshape", lambda _, x: x.view(2, -1)),
        ("transpose", lambda _, x: x.permute(0, 2, 3, 1)),
        ("slice", lambda _, x: x[:, ::2]),
        ("clip", lambda _, x: x.clamp(0, 1)),
        ("resize", lambda _, x: F.interpolate(x, scale_factor=2)),
        ("pad", lambda _, x: F.pad(x, (1, 1))),
        ("maxpool", lambda _, x: F.max_pool2d(x, 2)),
        ("avgpool", lambda _, x: F.avg_pool2d(x, 2)),
    ],
)
def test_functions_and_methods_have_a_kind(kind, forward):
    assert name_in(forward) == kind


@pytest.mark.parametrize(
    "forward",
    [
        pytest.param(lambda _, x: x.flip(1), id="flip"),
        pytest.param(lambda _, x: x.roll(1), id="roll"),
        pytest.param(lambda _, x: x.swapaxes(1, 2), id="swapaxes"),
        pytest.param(lambda _, x: torch.swapaxes(x, 1, 2), id="torch.swapaxes"),
        pytest.param(lambda _, x: x.mT, id="mT"),
    ],
)
def test_no_operation_that_rearranges_values_is_taken_for_another(forward):
    """Known or not, a rearrangement never counts as arithmetic or as a value that carries no activations."""
    kind = kind_in(forward)
    assert kind is None or kind.moves


class Own(nn.Conv2d):
    """A user's convolution."""


class OwnOwn(Own):
    """And a refinement of it."""


@pytest.mark.parametrize("cls", [Own, OwnOwn])
def test_a_users_subclass_of_conv2d_left_whole_is_a_conv(cls):
    net = Net(lambda net, x: net.op(x), op=cls(4, 4, 1))
    _, region, graph = captured_of(net, torch.randn(X), leaf_modules=(Own,))
    (node,) = [node for node in graph.nodes if node.op == "call_module"]
    assert kind_of(node, dict(region.named_modules())).name == "conv"


def test_a_users_subclass_of_conv2d_is_left_whole_without_being_named():
    """Traced into, its weight would be a constant of the graph, which nothing quantizes."""
    _, _, graph = captured_of(Net(lambda net, x: net.op(x), op=Own(4, 4, 1)), torch.randn(X))
    assert [(node.op, node.target) for node in graph.nodes if node.op not in ("placeholder", "output")] == [
        ("call_module", "op")
    ]


# --- pools that take the whole plane -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "forward"),
    [
        pytest.param("global_avgpool", lambda _, x: F.adaptive_avg_pool2d(x, 1), id="adaptive-to-1"),
        pytest.param("global_avgpool", lambda _, x: F.adaptive_avg_pool2d(x, (1, 1)), id="adaptive-to-1x1"),
        pytest.param("avgpool", lambda _, x: F.adaptive_avg_pool2d(x, 3), id="adaptive-to-3"),
        pytest.param("avgpool", lambda _, x: F.adaptive_avg_pool2d(x, (1, 3)), id="adaptive-to-1x3"),
        pytest.param("avgpool", lambda _, x: F.avg_pool2d(x, 2), id="window"),
        pytest.param("global_maxpool", lambda _, x: F.adaptive_max_pool2d(x, 1), id="max-to-1"),
        pytest.param("maxpool", lambda _, x: F.adaptive_max_pool2d(x, 2), id="max-to-2"),
        pytest.param("global_avgpool", lambda _, x: x.mean([2, 3]), id="mean-of-plane"),
        pytest.param("global_avgpool", lambda _, x: x.mean((3, 2)), id="mean-of-plane-swapped"),
        pytest.param("global_avgpool", lambda _, x: x.mean((-1, -2)), id="mean-counted-from-the-end"),
        pytest.param("global_avgpool", lambda _, x: x.mean(dim=(2, 3), keepdim=True), id="mean-by-keyword"),
        pytest.param("global_avgpool", lambda _, x: torch.mean(x, (2, 3)), id="torch.mean"),
        pytest.param("mean", lambda _, x: x.mean(1), id="mean-of-channels"),
        pytest.param("mean", lambda _, x: x.mean((1, 2)), id="mean-of-channels-and-rows"),
        pytest.param("mean", lambda _, x: x.mean(2), id="mean-of-rows"),
        pytest.param("mean", lambda _, x: x.mean(), id="mean-of-all"),
    ],
)
def test_a_pool_is_global_where_it_takes_the_whole_plane_of_each_channel(kind, forward):
    assert name_in(forward) == kind


@pytest.mark.parametrize(
    ("kind", "module"),
    [
        ("global_avgpool", nn.AdaptiveAvgPool2d(1)),
        ("global_avgpool", nn.AdaptiveAvgPool2d((1, 1))),
        ("avgpool", nn.AdaptiveAvgPool2d(2)),
        ("global_maxpool", nn.AdaptiveMaxPool2d(1)),
        ("avgpool", nn.AvgPool2d(2)),
        ("maxpool", nn.MaxPool2d(2)),
    ],
    ids=str,
)
def test_a_pooling_module_is_global_where_it_takes_the_whole_plane(kind, module):
    assert name_in(lambda net, x: net.pool(x), pool=module) == kind


# --- what has no kind --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "forward",
    [
        pytest.param(lambda _, x: torch.special.bessel_j0(x), id="function"),
        pytest.param(lambda _, x: x.logcumsumexp(1), id="method"),
        pytest.param(lambda net, x: net.op(x), id="module"),
    ],
)
def test_what_the_tables_do_not_know_has_no_kind(forward):
    assert kind_in(forward, op=nn.Softsign()) is None


def test_inputs_and_outputs_have_no_kind_and_parameters_are_constants():
    _, region, graph = captured_of(Net(lambda net, x: x + net.p, p=nn.Parameter(torch.ones(1))), torch.randn(X))
    modules = dict(region.named_modules())
    found = {node.op: kind_of(node, modules) for node in graph.nodes}
    assert found["placeholder"] is None
    assert found["output"] is None
    assert found["get_attr"].name == "constant"


def test_a_module_of_a_user_may_declare_its_kind():
    class Mine(nn.Module):
        kind = "matmul"

        def forward(self, x):
            return x @ x

    assert name_in(lambda net, x: net.op(x), op=Mine()) == "matmul"


def test_a_declared_kind_that_does_not_exist_counts_for_nothing():
    class Mine(nn.Module):
        kind = "of my own"

        def forward(self, x):
            return x

    assert name_in(lambda net, x: net.op(x), op=Mine()) is None


def test_stochastic_depth_of_other_packages_is_the_identity():
    """It is a layer of its own, so that it still leaves out samples in training."""

    class DropPath(nn.Module):
        def forward(self, x):
            return x * 2 if self.training else x

    assert known_class(DropPath()) is None
    DropPath.__module__, DropPath.__qualname__ = "timm.layers.drop", "DropPath"
    assert known_class(DropPath()) is nn.Identity
    assert name_in(lambda m, x: m.drop(x), drop=DropPath()) == "identity"

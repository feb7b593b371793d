"""Carrying out a Plan: quantizers on the edges and on the weights it names, and nowhere else."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrize

import detent
from detent.errors import CaptureError, NotCalibratedError
from detent.graph import Plan, QuantizedTensor, fold_batch_norms, insert, observing, quantizers_of
from detent.numerics import IntGrid, PerChannel, QParams, Scheme, fake_quantize
from tests.graph.nets import Net, assert_close, captured_of, run

S8 = Scheme(IntGrid(8))
U8 = Scheme(IntGrid(8, signed=False), symmetric=False)
PER_CHANNEL = Scheme(IntGrid(8), granularity=PerChannel(0))


def activation(node, *, users=(), shares=None, scheme=S8, kind="relu", region=""):
    return QuantizedTensor(
        tensor=node,
        region=region,
        node=node,
        role="activation",
        kind=kind,
        scheme=scheme,
        quantizer="fixed",
        observer="minmax",
        why="",
        users=users,
        shares=shares,
    )


def parameter(node, role="weight", *, scheme=PER_CHANNEL, quantizer="fixed", layer=None):
    return QuantizedTensor(
        tensor=f"{layer or node}.{role}",
        region="",
        node=node,
        role=role,
        kind="conv",
        scheme=scheme,
        quantizer=quantizer,
        observer="minmax",
        why="",
    )


def inserted(forward, *entries, x=None, strategy=-1, **parts):
    """A network with the quantizers of `entries`, its graph, and the float network."""
    net = Net(forward, **parts)
    x = torch.randn(2, 4, 6, 6) if x is None else x
    captured, region, _ = captured_of(net, x)
    fold_batch_norms(captured, strategy)
    insert(captured, Plan(backend="test", recipe="test", entries=entries))
    return captured.module, region.graphs["forward"], net, x


def edges(graph):
    """Each operation with what it takes in, written as `op(input, ...)`."""
    return [
        f"{node.target}({', '.join(source.name for source in node.all_input_nodes)})"
        for node in graph.nodes
        if node.op == "call_module"
    ]


def three_users(net, x):
    y = net.relu(x)
    return net.a(y) + net.b(y), y


def convs(*names):
    return {name: nn.Conv2d(4, 4, 1) for name in names}


# --- edges -------------------------------------------------------------------------------------------------


def test_without_named_users_every_user_gets_the_quantized_value():
    _, graph, *_ = inserted(three_users, activation("relu"), relu=nn.ReLU(), **convs("a", "b"))
    q = "activation_quantizers_relu"
    assert edges(graph) == ["relu(x)", "activation_quantizers.relu(relu)", f"a({q})", f"b({q})"]
    assert q in [source.name for source in graph.output_node().all_input_nodes]


def test_only_the_named_users_get_the_quantized_value():
    _, graph, *_ = inserted(three_users, activation("relu", users=("b",)), relu=nn.ReLU(), **convs("a", "b"))
    q = "activation_quantizers_relu"
    assert edges(graph) == ["relu(x)", "activation_quantizers.relu(relu)", "a(relu)", f"b({q})"]
    assert "relu" in [source.name for source in graph.output_node().all_input_nodes]


def test_inputs_of_the_network_are_edges_too():
    _, graph, *_ = inserted(lambda n, x: n.a(x), activation("x"), **convs("a"))
    assert edges(graph) == ["activation_quantizers.x(x)", "a(activation_quantizers_x)"]


def test_the_quantized_value_is_the_one_on_the_grid():
    model, _, net, x = inserted(lambda n, x: n.a(x), activation("x", scheme=U8), **convs("a"))
    qparams = QParams(torch.tensor(0.1), torch.tensor(100))
    (quantizer,) = quantizers_of(model)
    quantizer.initialize(qparams)
    assert_close(run(model, (x,)), run(net.a, (fake_quantize(x, qparams, U8),)), 1e-6)  # the same convolution
    assert not torch.equal(run(model, (x,)), run(net, (x,)))


def test_tensors_that_share_have_one_quantizer():
    def forward(net, x):
        return net.a(x) + net.b(x)

    model, graph, *_ = inserted(forward, activation("a"), activation("b", shares="a"), **convs("a", "b"))
    assert len(quantizers_of(model)) == 1
    assert edges(graph) == ["a(x)", "activation_quantizers.a(a)", "b(x)", "activation_quantizers.b(b)"]
    holder = model.activation_quantizers
    assert holder["a"] is holder["b"]
    with observing(model), torch.no_grad():
        model(torch.randn(2, 4, 6, 6))
    assert all(quantizer.calibrated for quantizer in quantizers_of(model))


def test_what_only_moves_values_of_a_shared_grid_is_not_quantized_again():
    def forward(net, x):
        return net.a(x).flatten(1)

    entries = activation("a"), activation("flatten", shares="a", kind="reshape")
    _, graph, *_ = inserted(forward, *entries, **convs("a"))
    assert edges(graph) == ["a(x)", "activation_quantizers.a(a)"]


def test_what_computes_on_a_shared_grid_is_quantized():
    def forward(net, x):
        return net.pool(net.a(x))

    entries = activation("a"), activation("pool", shares="a", kind="avgpool")
    model, graph, *_ = inserted(forward, *entries, pool=nn.AvgPool2d(2), **convs("a"))
    assert edges(graph)[-1] == "activation_quantizers.pool(pool)"
    assert len(quantizers_of(model)) == 1


def test_a_quantizer_knows_its_tensor_scheme_and_observer():
    model, *_ = inserted(lambda n, x: n.a(x), activation("x", scheme=U8), parameter("a"), **convs("a"))
    found = {q.name: (q.role, q.scheme, q.observer, q.calibrated) for q in quantizers_of(model)}
    assert found == {
        "x": ("activation", U8, ("minmax", {}), False),
        "a.weight": ("weight", PER_CHANNEL, ("minmax", {}), False),
    }


# --- weights -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("op", "x", "axis"),
    [
        pytest.param(nn.Conv1d(4, 6, 3), (2, 4, 9), 0, id="conv1d"),
        pytest.param(nn.Conv2d(4, 6, 3), (2, 4, 9, 9), 0, id="conv2d"),
        pytest.param(nn.Conv3d(4, 6, 3), (2, 4, 5, 5, 5), 0, id="conv3d"),
        pytest.param(nn.ConvTranspose2d(4, 6, 3), (2, 4, 5, 5), 1, id="transposed"),
        pytest.param(nn.Linear(4, 6), (2, 4), 0, id="linear"),
    ],
)
def test_weights_are_quantized_where_they_live(op, x, axis):
    scheme = Scheme(IntGrid(4), granularity=PerChannel(axis))
    model, _, net, x = inserted(lambda n, x: n.op(x), parameter("op", scheme=scheme), x=torch.randn(x), op=op)
    assert parametrize.is_parametrized(model.op, "weight")
    assert type(model.op).__mro__[1] is type(op)
    (quantizer,) = quantizers_of(model)
    assert quantizer.scale_shape == (6,)
    with observing(model), torch.no_grad():
        assert_close(model(x), net(x), 0)
    on_grid = fake_quantize(op.weight.detach(), quantizer.qparams(), scheme)
    assert torch.equal(model.op.weight.detach(), on_grid)
    assert not torch.equal(on_grid, op.weight.detach())
    assert torch.equal(model.op.parametrizations.weight.original, op.weight)


def test_a_module_called_twice_has_one_weight_quantizer():
    model, graph, net, x = inserted(
        lambda n, x: n.a(n.a(x)), parameter("a"), activation("a", kind="conv"), **convs("a")
    )
    assert [q.name for q in quantizers_of(model) if q.role == "weight"] == ["a.weight"]
    assert edges(graph) == ["a(x)", "activation_quantizers.a(a)", "a(activation_quantizers_a)"]
    with observing(model), torch.no_grad():
        assert_close(model(x), net(x), 1e-6)


@pytest.mark.parametrize("strategy", [1, 2, 3, 4])
def test_a_folded_batch_norm_quantizes_the_folded_weight(strategy):
    bn = nn.BatchNorm2d(4)
    nn.init.uniform_(bn.weight, 0.5, 3)
    model, _, _, x = inserted(lambda n, x: n.bn(n.a(x)), parameter("a"), strategy=strategy, bn=bn, **convs("a"))
    (quantizer,) = quantizers_of(model)
    assert model.a.weight_quantizer is quantizer
    with observing(model), torch.no_grad():
        model(x)
    folded = model.a.weight.detach()
    widest = folded.abs().amax((1, 2, 3))
    torch.testing.assert_close(quantizer.qparams().scale * 127.5, widest, rtol=0.01, atol=0)  # 127 or 127.5 steps


# --- biases ------------------------------------------------------------------------------------------------


def derived(node="a", *, granularity=None):
    scheme = Scheme(IntGrid(32), granularity=granularity or PerChannel(0))
    return parameter(node, "bias", scheme=scheme, quantizer="derived")


@pytest.mark.parametrize(
    ("weight_scheme", "bias_granularity"),
    [pytest.param(PER_CHANNEL, PerChannel(0), id="per-channel"), pytest.param(S8, None, id="per-tensor")],
)
def test_a_derived_bias_is_integers_on_the_scale_of_input_times_weight(weight_scheme, bias_granularity):
    bias = derived() if bias_granularity else parameter("a", "bias", scheme=Scheme(IntGrid(32)), quantizer="derived")
    entries = activation("x"), parameter("a", scheme=weight_scheme), bias
    model, _, net, x = inserted(lambda n, x: n.a(x), *entries, **convs("a"))
    with observing(model), torch.no_grad():
        model(x)
    by_name = {q.name: q.qparams().scale for q in quantizers_of(model)}
    scale = by_name["x"] * by_name["a.weight"]
    expected = torch.round(net.a.bias.detach() / scale) * scale
    assert torch.equal(model.a.bias.detach(), expected)
    assert not torch.equal(expected, net.a.bias.detach())


def test_the_scale_of_a_derived_bias_follows_the_two_quantizers():
    entries = activation("x"), parameter("a"), derived()
    model, _, net, x = inserted(lambda n, x: n.a(x), *entries, **convs("a"))
    with observing(model), torch.no_grad():
        model(x)
    for quantizer in quantizers_of(model):
        quantizer.initialize(QParams.symmetric(torch.full(quantizer.scale_shape, 0.5)))
    expected = torch.round(net.a.bias.detach() / 0.25) * 0.25
    assert torch.equal(model.a.bias.detach(), expected)


def test_a_derived_bias_looks_through_what_only_moves_values():
    def forward(net, x):
        return net.a(net.pool(x))

    entries = activation("x"), activation("pool", shares="x", kind="maxpool"), parameter("a"), derived()
    model, _, net, x = inserted(forward, *entries, pool=nn.MaxPool2d(2), **convs("a"))
    with observing(model), torch.no_grad():
        model(x)
    by_name = {q.name: q.qparams().scale for q in quantizers_of(model)}
    scale = by_name["x"] * by_name["a.weight"]
    assert torch.equal(model.a.bias.detach(), torch.round(net.a.bias.detach() / scale) * scale)


def test_a_derived_bias_does_not_look_through_what_computes():
    """The input of the second convolution is float: no integer bias has a meaning there."""

    def forward(net, x):
        return net.b(net.a(x))

    entries = activation("x"), parameter("a"), parameter("b"), derived("b")
    with pytest.raises(CaptureError, match=r"'b.bias'(.|\n)*not quantized"):
        inserted(forward, *entries, **convs("a", "b"))


@pytest.mark.parametrize("groups", [1, 2])
def test_the_derived_bias_of_a_transposed_convolution(groups):
    scheme = Scheme(IntGrid(8), granularity=PerChannel(1))
    op = nn.ConvTranspose2d(4, 6, 3, groups=groups)
    entries = activation("x"), parameter("op", scheme=scheme), derived("op")
    model, _, net, x = inserted(lambda n, x: n.op(x), *entries, op=op)
    with observing(model), torch.no_grad():
        model(x)
    by_name = {q.name: q.qparams().scale for q in quantizers_of(model)}
    scale = by_name["x"] * by_name["op.weight"].repeat(groups)
    assert torch.equal(model.op.bias.detach(), torch.round(net.op.bias.detach() / scale) * scale)


def test_gradients_reach_the_bias_through_its_grid():
    entries = activation("x"), parameter("a"), derived()
    model, _, _, x = inserted(lambda n, x: n.a(x), *entries, **convs("a"))
    with observing(model), torch.no_grad():
        model(x)
    model(x).sum().backward()
    bias = model.a.parametrizations.bias.original
    assert torch.equal(bias.grad, torch.full((4,), 2.0 * 36))  # one for each of 2 x 6 x 6 outputs


@pytest.mark.parametrize("strategy", [1, 4])
def test_a_derived_bias_behind_a_folded_batch_norm_is_the_merged_bias_on_its_grid(strategy):
    """What is deployed is an integer bias: eval simulates it, as strategy 0 does."""
    bn = nn.BatchNorm2d(4)
    nn.init.normal_(bn.bias), nn.init.normal_(bn.running_mean)
    coarse = Scheme(IntGrid(4), granularity=PerChannel(0))
    entries = activation("x", scheme=Scheme(IntGrid(4))), parameter("a", scheme=coarse), derived()
    parts = {"bn": bn, **convs("a")}
    outputs = []
    x = torch.randn(2, 4, 6, 6)
    for number in (0, strategy):
        model, *_ = inserted(lambda n, x: n.bn(n.a(x)), *entries, x=x, strategy=number, **parts)
        with observing(model), torch.no_grad():
            model(x)
        outputs.append(run(model, (x,)))
    # The grids are those of 4 bits: half a step of the bias is 1e-3 or more, float32 noise 1e-6.
    assert_close(outputs[1], outputs[0], 1e-5)


# --- regions -----------------------------------------------------------------------------------------------


def test_quantizers_of_an_island_go_into_its_regions():
    class Branch(nn.Module):
        def __init__(self):
            super().__init__()
            self.a = nn.Conv2d(4, 4, 1)

        def forward(self, x):
            return self.a(x) if x.sum() < 1e9 else x

    net = Net(lambda n, x: n.branch(x), branch=Branch())
    x = torch.randn(2, 4, 6, 6)
    captured, _, _ = captured_of(net, x)
    insert(
        captured,
        Plan(backend="t", recipe="t", entries=(activation("input_0", region="branch.a", kind="input"),)),
    )
    (quantizer,) = quantizers_of(captured.module)
    quantizer.initialize(QParams.symmetric(torch.tensor(1.0)))
    assert_close(run(captured.module, (x,)), run(net, (x.round(),)), 1e-6)


class ReadBeforeItIsCalled(nn.Module):
    def __init__(self):
        super().__init__()
        self.book, self.head = nn.Embedding(16, 8), nn.Linear(8, 4)

    def forward(self, x):
        distances = self.book.weight.square().sum(1) - 2 * x @ self.book.weight.t()
        return self.head(self.book(distances.argmin(1)))


def test_a_weight_that_is_also_read_needs_no_scale_until_it_runs():
    """torch computes what a graph reads of a module when it makes or copies a graph module."""
    x = torch.randn(6, 8)
    prepared = detent.prepare(ReadBeforeItIsCalled(), (x,), backend="onnxruntime", recipe="lsq")
    copied = copy.deepcopy(prepared)
    for one in (prepared, copied):
        with pytest.raises(NotCalibratedError):
            one(x)
        detent.calibrate(one, [(x,)])
    assert torch.equal(prepared(x), copied(x))

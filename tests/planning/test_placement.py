"""Which tensors a backend quantizes, on networks of a few operations, each about one rule."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from detent.calibrating import calibrate
from detent.graph import DeQuantStub, QuantStub, capture, quantizers_of
from detent.planning import MOVES, VANISHES, Backend, SupportedSchemes, plan, quantize_inputs, quantize_io
from detent.preparing import prepare
from tests.planning.nets import DEFAULT, Net, image, planned, quantized, summary

INT8 = "int8 symmetric per-tensor"


def target(rules, **said):
    """A backend of int8 for everything, with these rules."""
    return Backend(
        name="toy", about="for one test", weight=SupportedSchemes(), activation=SupportedSchemes(), rules=rules, **said
    )


def convs(**more):
    return {"a": nn.Conv2d(4, 4, 1), "b": nn.Conv2d(4, 4, 1), **more}


# ---- inputs, outputs ----


def test_operations_that_take_integers_ask_for_their_inputs_only():
    found = planned(Net(lambda n, x: n.b(F.gelu(n.a(x))), **convs()), backend=target(quantize_inputs("conv")))
    assert quantized(found) == ["x", "gelu"]
    assert found["a"].reason == "toy does not quantize what gelu takes in"
    assert found["b"].reason == "network outputs stay float"


def test_operations_that_give_integers_quantize_their_outputs_too():
    found = planned(
        Net(lambda n, x: n.b(F.gelu(n.a(x))), **convs()), backend=target(quantize_io("conv"), quantize_outputs=True)
    )
    assert quantized(found) == ["x", "a", "gelu", "b"]
    assert found["b"].why == "output of conv"


def test_the_output_of_the_network_stays_float_unless_the_backend_says_otherwise():
    net = Net(lambda n, x: n.a(x).flatten(1), **convs())
    found = planned(net, backend=target(quantize_io("conv")))
    assert quantized(found) == ["x"]
    assert found["a"].reason == "network outputs stay float"
    assert quantized(planned(net, backend=target(quantize_io("conv"), quantize_outputs=True))) == ["x", "a", "flatten"]


def test_an_output_stays_float_behind_kinds_that_give_real_numbers_as_well():
    backend = target(quantize_io("conv", "linear"), quantize_outputs=True, float_outputs=("linear",))
    linear = {"a": nn.Linear(6, 6), "b": nn.Linear(6, 6)}
    found = planned(Net(lambda n, x: n.b(n.a(x)).flatten(1), **linear), backend=backend)
    assert quantized(found) == ["x", "a"]
    assert found["b"].reason == "network outputs stay float"
    assert quantized(planned(Net(lambda n, x: F.relu(n.a(x)), **linear), backend=backend)) == ["x", "relu"]
    assert quantized(planned(Net(lambda n, x: n.a(x), **convs()), backend=backend)) == ["x", "a"]
    assert quantized(planned(Net(lambda n, x: (y := n.a(x), n.b(y)), **linear), backend=backend)) == ["x", "a"]


def test_an_output_that_another_operation_takes_in_is_quantized_for_that_one():
    found = planned(Net(lambda n, x: (n.a(x), n.b(n.a(x))), **convs()), backend=target(quantize_inputs("conv")))
    assert found["a_1"].users == ()
    found = planned(Net(lambda n, x: (y := n.a(x), n.b(y)), **convs()), backend=target(quantize_inputs("conv")))
    assert found["a"].users == ("b",)


def test_a_tensor_is_quantized_for_the_operations_that_ask_and_float_for_the_others():
    found = planned(Net(lambda n, x: n.a(x) + x, **convs()), backend=target(quantize_inputs("conv")))
    assert found["x"].users == ("a",)
    net = prepare(
        Net(lambda n, x: x - x * 1.0 + 0 * n.a(x), **convs()).eval(),
        (image(),),
        backend=target(quantize_inputs("conv")),
    )
    calibrate(net, [image()])
    assert torch.equal(net(x := image()), torch.zeros_like(x))


def test_what_is_fused_is_no_tensor():
    found = planned(
        Net(lambda n, x: F.relu(n.bn(n.a(x))), bn=nn.BatchNorm2d(4), **convs()),
        backend=target(quantize_io("conv"), quantize_outputs=True, batch_norm=-1),
    )
    assert [entry.tensor for entry in found] == ["x", "a.weight", "a.bias", "relu"]


def test_the_second_operand_of_a_fused_add_is_quantized():
    found = planned(
        Net(lambda n, x: F.gelu(x * 2 + n.b(x)), **convs()),
        backend=target(quantize_inputs("mul", "add"), fusions=(("mul", "add"),)),
    )
    assert quantized(found) == ["x", "b"]
    assert found["x"].users == ("mul",)


# ---- one scale for several tensors ----


def test_what_only_moves_numbers_shares_and_gets_no_quantizer_of_its_own():
    net = Net(lambda n, x: n.b(F.max_pool2d(n.a(x), 2).transpose(2, 3)), **convs())
    found = planned(net, backend=target(quantize_inputs("conv")))
    assert summary(found)["max_pool2d"] == summary(found)["transpose"] == "= a"
    assert found["transpose"].why == "same numbers as a"
    prepared = prepare(net.eval(), (image(),), backend=target(quantize_inputs("conv")))
    assert sum(node.name.startswith("activation_quantizers") for node in prepared.graphs["forward"].nodes) == 2
    assert {quantizer.name for quantizer in quantizers_of(prepared)} == {"x", "a", "a.weight", "b.weight"}


def test_what_keeps_the_scale_but_computes_new_numbers_is_rounded_again_by_the_same_quantizer():
    net = Net(lambda n, x: n.b(F.avg_pool2d(n.a(x), 2)), **convs())
    keeps = target(quantize_inputs("conv"), passthrough=("avgpool",))
    assert summary(planned(net, backend=keeps))["avg_pool2d"] == "= a"
    assert planned(net, backend=keeps)["avg_pool2d"].why == "one scale with a"
    prepared = prepare(net.eval(), (image(),), backend=keeps)
    calibrate(prepared, [image()])
    assert sum(node.name.startswith("activation_quantizers") for node in prepared.graphs["forward"].nodes) == 3
    assert len(quantizers_of(prepared)) == 4


def test_without_sharing_the_quantizer_stands_where_the_integers_are_needed():
    found = planned(
        Net(lambda n, x: n.b(F.max_pool2d(n.a(x), 2)), **convs()),
        backend=target(quantize_inputs("conv"), passthrough=()),
    )
    assert quantized(found) == ["x", "max_pool2d"]
    assert found["a"].reason == "toy does not quantize what maxpool takes in"


def test_a_tensor_that_is_moved_for_a_float_operation_too_is_quantized_behind_the_move():
    def forward(n, x):
        y = n.a(x).transpose(2, 3)
        return n.b(y) + F.gelu(y)

    found = planned(Net(forward, **convs()), backend=target(quantize_inputs("conv")))
    assert quantized(found) == ["x", "transpose"]
    assert found["transpose"].users == ("b",)
    assert found["a"].reason == "quantized after transpose"


def test_reading_the_shape_of_a_tensor_is_no_use_of_its_numbers():
    def forward(n, x):
        y = n.a(x)
        return n.b(y.view(y.shape[0], 4, -1, 1))

    assert planned(Net(forward, **convs()), backend=target(quantize_inputs("conv")))["a"].users == ()


def test_the_parts_of_a_split_share_its_scale():
    found = planned(
        Net(lambda n, x: (p := n.a(x).chunk(2, 1), n.c(p[0]) + n.c(p[1]))[1], c=nn.Conv2d(2, 2, 1), **convs()),
        backend=target(quantize_inputs("conv")),
    )
    assert {name: what for name, what in summary(found).items() if "getitem" in name} == {
        "getitem": "= a",
        "getitem_1": "= a",
    }
    assert "chunk" not in summary(found)  # a tuple is no tensor


def test_one_part_of_a_split_may_be_quantized_alone():
    found = planned(
        Net(lambda n, x: (p := F.gelu(x).chunk(2, 1), n.c(p[0]) + F.gelu(p[1]))[1], c=nn.Conv2d(2, 2, 1)),
        backend=target(quantize_inputs("conv")),
    )
    assert quantized(found) == ["getitem"]


def test_dropout_and_identity_are_no_operations_on_any_target():
    found = planned(
        Net(lambda n, x: n.b(n.drop(n.same(n.a(x)))), drop=nn.Dropout(), same=nn.Identity(), **convs()),
        backend=target(quantize_inputs("conv"), passthrough=()),
    )
    assert summary(found)["drop"] == summary(found)["same"] == "= a"


CONCAT = target(quantize_inputs("conv"), passthrough=("concat",), common_qparams=("concat",))


def test_what_is_joined_has_one_scale():
    net = Net(lambda n, x: n.c(torch.cat((n.a(x), n.b(x)), 1)), c=nn.Conv2d(8, 4, 1), **convs())
    found = planned(net, backend=CONCAT)
    assert summary(found)["b"] == summary(found)["cat"] == "= a"
    assert (found["b"].why, found["cat"].why) == ("one scale with a", "same numbers as a")
    prepared = prepare(net.eval(), (image(),), backend=CONCAT)
    calibrate(prepared, [image()])
    held = prepared.get_submodule("activation_quantizers")
    assert held["a"] is held["b"]
    assert "cat" not in held


def test_tensors_that_two_joins_have_in_common_tie_all_of_them():
    found = planned(
        Net(
            lambda n, x: n.c(torch.cat((y := n.a(x), n.b(x)), 1)) + n.c(torch.cat((y, n.d(x)), 1)),
            c=nn.Conv2d(8, 4, 1),
            d=nn.Conv2d(4, 4, 1),
            **convs(),
        ),
        backend=CONCAT,
    )
    assert {name for name, what in summary(found).items() if what == "= a"} == {"b", "cat", "d", "cat_1"}


@pytest.mark.parametrize(
    "forward",
    [
        pytest.param(lambda n, x: (n.b(x), x.transpose(2, 3)), id="a-move-that-is-not-shared"),
        pytest.param(lambda n, x: (n.b(x), n.same(x.transpose(2, 3))), id="and-one-that-is-behind-it"),
        pytest.param(lambda n, x: (n.q(x), n.r(n.same(x))), id="two-stubs"),
    ],
)
def test_what_is_moved_in_float_is_quantized_where_it_is_joined(forward):
    """A join of such tensors has a quantizer of its own: it is not on the grid of the first."""
    net = Net(
        lambda n, x: n.c(torch.cat(forward(n, x), 1)),
        c=nn.Conv2d(8, 4, 1),
        b=nn.Conv2d(4, 4, 1),
        same=nn.Identity(),
        q=QuantStub(),
        r=QuantStub(),
    )
    seen = {}
    prepared = prepare(net.eval(), (image(),), backend=CONCAT)
    calibrate(prepared, [image()])
    prepared.c.register_forward_pre_hook(lambda _, args: seen.update(x=args[0]))
    prepared(image())
    scale = prepared.get_submodule("activation_quantizers")["cat"].qparams().scale
    torch.testing.assert_close(torch.round(seen["x"] / scale) * scale, seen["x"])


def test_members_of_a_dict_are_inputs_like_others():
    class Members(nn.Module):
        def __init__(self):
            super().__init__()
            self.c = nn.Conv2d(8, 4, 1)

        def forward(self, batch):
            return self.c(torch.cat((batch["left"], batch["right"]), 1))

    batch = {"left": image(), "right": 100 * image()}
    prepared = prepare(Members().eval(), (batch,), backend=CONCAT)
    assert summary(prepared.plan)["getitem_1"] == summary(prepared.plan)["cat"] == "= getitem"
    assert prepared.plan["getitem"].kind == "input"
    calibrate(prepared, [(batch,)])
    held = prepared.get_submodule("activation_quantizers")
    assert set(held) == {"getitem", "getitem_1"}


def test_a_join_with_a_tensor_that_cannot_be_quantized_is_float():
    found = planned(
        Net(lambda n, x: n.c(torch.cat((n.q(n.a(x)), x), 1)), q=QuantStub(), c=nn.Conv2d(8, 4, 1), **convs()),
        backend=CONCAT,
    )
    assert summary(found)["cat"] == INT8
    assert found["q"].reason == "quantized after cat"


def test_without_alignment_a_join_has_a_scale_of_its_own():
    found = planned(
        Net(lambda n, x: torch.cat((n.a(x), n.b(x)), 1), **convs()),
        backend=target(quantize_io("conv", "concat"), quantize_outputs=True),
    )
    assert summary(found)["a"] == summary(found)["b"] == summary(found)["cat"] == INT8


def test_the_operands_of_an_add_have_one_scale_where_the_target_wants_it():
    found = planned(
        Net(lambda n, x: n.a(x) + n.b(x), **convs()),
        backend=target(quantize_io("conv", "add"), common_qparams=("add",), quantize_outputs=True),
    )
    assert summary(found)["b"] == "= a"
    assert summary(found)["add"] == INT8


def test_one_sign_for_one_scale():
    unsigned = SupportedSchemes(signed=(True, False), auto_sign=True)
    backend = Backend(
        name="toy",
        about="",
        weight=SupportedSchemes(),
        activation=unsigned,
        rules=quantize_inputs("conv"),
        passthrough=("concat",),
        common_qparams=("concat",),
    )
    net = Net(lambda n, x: n.c(torch.cat((F.relu(n.a(x)), n.b(x)), 1)), c=nn.Conv2d(8, 4, 1), **convs())
    assert summary(planned(net, backend=backend))["relu"] == "int8 symmetric per-tensor"
    both_positive = Net(
        lambda n, x: n.c(torch.cat((F.relu(n.a(x)), F.relu(n.b(x))), 1)), c=nn.Conv2d(8, 4, 1), **convs()
    )
    assert summary(planned(both_positive, backend=backend))["relu"] == "uint8 symmetric per-tensor"


# ---- fused residual adds ----

FUSES = target(quantize_inputs("conv", "add"), unquantized_edges=(("conv", "add"),))


@pytest.mark.parametrize(
    ("forward", "kept_float"),
    [
        pytest.param(lambda n, x: n.a(x) + x, ["a"], id="conv-and-shortcut"),
        pytest.param(lambda n, x: x + n.a(x), ["a"], id="shortcut-and-conv"),
        pytest.param(lambda n, x: n.a(x) + n.b(x), ["a"], id="two-convs-the-first"),
        pytest.param(lambda n, x: F.relu(n.a(x)) + x, [], id="an-activation-between"),
        pytest.param(lambda n, x: (y := n.a(x)) + n.b(y), ["b"], id="a-conv-with-two-users"),
        pytest.param(lambda n, x: n.a(x).transpose(2, 3) + x, [], id="a-move-between"),
        pytest.param(lambda n, x: F.dropout(n.a(x), training=False) + x, ["a", "dropout"], id="nothing-between"),
    ],
)
def test_exactly_one_operand_of_a_fused_add_is_not_quantized(forward, kept_float):
    found = planned(Net(lambda n, x: F.gelu(forward(n, x)), **convs()), backend=FUSES)
    assert [entry.tensor for entry in found.kept_float if "fuses" in entry.reason] == kept_float
    assert all(found[name].reason == "toy fuses it into add" for name in kept_float)


def test_a_convolution_that_gives_integers_is_not_quantized_before_a_fused_add_either():
    backend = target(quantize_io("conv", "add"), unquantized_edges=(("conv", "add"),), quantize_outputs=True)
    found = planned(Net(lambda n, x: n.a(x) + x, **convs()), backend=backend)
    assert quantized(found) == ["x", "add"]


@pytest.mark.parametrize(
    ("forward", "kept_float"),
    [
        pytest.param(lambda n, x: F.relu(n.a(x)) + x, ["relu"], id="conv-relu"),
        pytest.param(lambda n, x: F.relu(n.norm(n.a(x))) + x, ["relu"], id="conv-norm-relu"),
        pytest.param(lambda n, x: n.a(x) + x, [], id="conv-alone"),
        pytest.param(lambda n, x: F.relu6(n.a(x)) + x, [], id="another-activation"),
        pytest.param(lambda n, x: (y := F.relu(n.a(x))) + n.b(y), [], id="two-users"),
    ],
)
def test_an_edge_may_name_an_activation(forward, kept_float):
    backend = target(quantize_inputs("conv", "add"), unquantized_edges=(("conv", "relu", "add"),))
    net = Net(lambda n, x: F.gelu(forward(n, x)), norm=nn.BatchNorm2d(4), **convs()).eval()
    assert [entry.tensor for entry in planned(net, backend=backend).kept_float if "fuses" in entry.reason] == kept_float


def test_an_excluded_convolution_is_not_fused():
    found = planned(Net(lambda n, x: n.a(x) + x, **convs()), backend=FUSES, exclude=["a"])
    assert quantized(found) == ["x", "a"]
    assert found["x"].users == ("add",)


# ---- stubs, graph breaks, modes, modules called twice ----


def test_stubs_bound_what_is_quantized():
    found = planned(
        Net(lambda n, x: n.c(n.dq(n.b(n.q(n.a(x))))), q=QuantStub(), dq=DeQuantStub(), c=nn.Conv2d(4, 4, 1), **convs()),
        backend=target(quantize_io("conv"), quantize_outputs=True),
    )
    assert [entry.tensor for entry in found.quantized] == ["q", "b", "b.weight"]
    outside = {entry.tensor for entry in found.kept_float if entry.reason == "outside of the stubs"}
    assert outside == {"x", "a", "a.weight", "a.bias", "dq", "c", "c.weight", "c.bias"}


def test_what_leaves_through_a_stub_leaves_the_network():
    found = planned(
        Net(lambda n, x: F.gelu(n.dq(n.a(n.q(x)))), q=QuantStub(), dq=DeQuantStub(), **convs()),
        backend=target(quantize_io("conv")),
    )
    assert found["a"].reason == "network outputs stay float"


class Branches(nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, x):
        return self.inner(x) if x.sum() < 1e9 else x


def test_an_island_is_in_scope_where_it_is_called_in_scope():
    def net(*, inside):
        order = (lambda n, x: n.dq(n.island(n.q(x)))) if inside else (lambda n, x: n.island(n.dq(n.a(n.q(x)))))
        return Net(order, q=QuantStub(), dq=DeQuantStub(), island=Branches(nn.Conv2d(4, 4, 1)), a=nn.Conv2d(4, 4, 1))

    backend = target(quantize_inputs("conv"))
    assert planned(net(inside=True), backend=backend)["island.inner.weight"].role == "weight"
    assert planned(net(inside=False), backend=backend)["island.inner.weight"].reason == "outside of the stubs"


def test_islands_are_noted_and_their_layers_go_by_their_own_names():
    net = Net(lambda n, x: F.gelu(n.island(n.a(x))), a=nn.Conv2d(4, 4, 1), island=Branches(nn.Conv2d(4, 4, 1)))
    found = planned(net, backend=target(quantize_inputs("conv")))
    assert found.notes[0].startswith("island stays Python: ")
    assert found["a"].reason == found["island"].reason.replace(
        "toy does not quantize what gelu takes in", "island stays Python"
    )
    assert found["island.inner.weight"].region == "island.inner"
    found = planned(net, backend=target(quantize_inputs("conv")), exclude=["island.inner"])
    assert found["island.inner.weight"].reason == "the recipe excludes it"


def test_a_module_called_twice_has_one_weight_and_no_bias_of_one_scale():
    backend = target(quantize_inputs("conv"), bias="int32")
    found = planned(Net(lambda n, x: n.a(F.gelu(n.a(x))), **convs()), backend=backend)
    assert [entry.tensor for entry in found.quantized] == ["x", "a.weight", "gelu"]
    assert found["a.bias"].reason == "called 2 times: its scale would be another each time"


class Modes(nn.Module):
    """Two graphs over one convolution: in one the second operand goes through a join, in the other it does not."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Conv2d(4, 4, 1), nn.Conv2d(4, 4, 1)

    def forward(self, x, mode="plain"):
        y, z = self.a(x), self.b(x)
        return self.a(torch.cat((y, z), 2)) if mode == "joined" else self.a(z)


@pytest.mark.parametrize("order", [("plain", "joined"), ("joined", "plain")])
def test_forward_modes_have_one_plan(order):
    modes = {name: {"mode": name} for name in order}
    found = planned(Modes(), image(), backend=CONCAT, modes=modes)
    assert len({entry.tensor for entry in found}) == len(found)
    assert {"x", "b", "cat"} <= set(quantized(found))
    for entry in found.quantized:
        assert entry.shares is None or found[entry.shares].shares is None
    prepared = prepare(Modes().eval(), (image(),), backend=CONCAT, recipe=DEFAULT, modes=modes)
    assert set(prepared.runners) == set(order)


# ---- what is no tensor of numbers, or no operation Detent knows ----


def test_whole_numbers_are_not_quantized():
    found = planned(
        Net(lambda n, ids: n.fc(n.table(ids)), table=nn.Embedding(9, 4), fc=nn.Linear(4, 2)),
        torch.tensor([[1, 2]]),
        backend=target(quantize_inputs("linear")),
    )
    assert [entry.tensor for entry in found] == ["table", "table.weight", "fc", "fc.weight", "fc.bias"]
    assert found["table.weight"].reason == "toy does not quantize embedding"


class Home(nn.Module):
    """An operation of the user's own."""

    def __init__(self):
        super().__init__()
        self.matrix = nn.Parameter(torch.eye(6))

    def forward(self, x):
        return x @ self.matrix


def test_what_detent_does_not_know_is_said():
    net = Net(lambda n, x: torch.sinc(n.home(n.a(x))), home=Home(), **convs())
    captured = capture(net.eval(), (image(),), leaf_modules=["home"])
    found = plan(captured, target(quantize_inputs("conv")), DEFAULT)
    assert found["a"].reason == "Home is not an operation Detent knows"
    assert found["home"].reason == "Home is not an operation Detent knows"
    assert found["home.matrix"].reason == "Detent does not know the weights of Home"
    assert found["sinc"].reason == "function sinc is not an operation Detent knows"


def test_what_can_be_deployed_is_known_to_the_plan():
    net = Net(
        lambda n, ids, x: (n.table(ids), n.slope(n.a(x)).half()),
        table=nn.EmbeddingBag(9, 4),
        slope=nn.RReLU(),
        **convs(),
    )
    found = planned(net, torch.tensor([[1, 2]]), image(), backend=target(quantize_inputs("conv")))
    assert found["a"].reason == "toy does not quantize what leaky_relu takes in"
    assert found["table.weight"].reason == "toy does not quantize embedding_bag"
    kinds = {entry.tensor: entry.kind for entry in found}
    assert [kinds[name] for name in ("table", "slope", "half")] == ["embedding_bag", "leaky_relu", "cast"]


def test_kinds_that_move_values_and_are_deployed():
    assert list(MOVES) == [
        *("reshape", "transpose", "slice", "gather", "expand"),
        *("maxpool", "global_maxpool", "pixel_shuffle"),
    ]
    assert list(VANISHES) == ["identity", "dropout", "conv_pad", "quant_stub"]


def test_the_matrices_of_a_recurrent_layer_are_said_to_be_float():
    found = planned(
        Net(lambda n, x: n.fc(n.lstm(x)[0]), lstm=nn.LSTM(4, 4), fc=nn.Linear(4, 2)),
        torch.randn(3, 2, 4),
        backend=target(quantize_inputs("linear")),
    )
    assert found["lstm.weight_ih_l0"].reason == "toy does not quantize lstm"
    assert quantized(found) == ["getitem"]


class Bare(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4, 4, 1, 1))
        self.conv = nn.Conv2d(4, 4, 1)

    def forward(self, x):
        return F.conv2d(self.conv(x), 2 * self.weight)


def test_a_weight_that_is_in_no_module_stays_float_and_so_does_its_operation():
    found = planned(Bare(), backend=target(quantize_io("conv"), quantize_outputs=True))
    assert found["mul"].reason == "the weight of conv2d is in no module"
    assert found["conv2d"].reason == "the weight of conv2d is in no module"
    assert quantized(found) == ["x", "conv"]


def test_a_constant_that_is_added_is_quantized_like_any_operand():
    class Shifted(nn.Module):
        def __init__(self):
            super().__init__()
            self.shift = nn.Parameter(torch.randn(4, 1, 1))

        def forward(self, x):
            return x + self.shift

    found = planned(Shifted(), backend=target(quantize_io("add"), quantize_outputs=True))
    assert quantized(found) == ["x", "shift", "add"]
    prepared = prepare(Shifted().eval(), (image(),), backend=target(quantize_io("add"), quantize_outputs=True))
    calibrate(prepared, [image()])
    assert all(quantizer.calibrated for quantizer in quantizers_of(prepared))


# ---- masks ----

SOFTMAX = target(quantize_io("matmul", "add", "mul", "softmax", "conv"), quantize_outputs=True)


def scores(forward, *inputs):
    return planned(Net(forward), torch.randn(2, 3, 3), *inputs, backend=SOFTMAX)


def test_a_mask_and_what_it_is_added_to_stay_float():
    found = scores(lambda _, x, mask: torch.softmax(torch.matmul(x, x) + mask.float() * -1e4, -1), torch.ones(3, 3) > 0)
    assert quantized(found) == ["x", "matmul", "softmax"]
    assert found["mul"].reason == "a mask"
    assert found["add"].reason == "a mask leaves no range for the scores"


def test_filling_with_a_mask_counts():
    found = scores(
        lambda _, x, mask: torch.softmax(torch.matmul(x, x).masked_fill(mask, -torch.inf), -1), torch.ones(3, 3) > 0
    )
    assert found["masked_fill"].reason == "a mask leaves no range for the scores"


class Causal(nn.Module):
    def __init__(self, most):
        super().__init__()
        self.register_buffer("bias", torch.full((3, 3), most).triu(1))

    def forward(self, x):
        return torch.softmax(torch.matmul(x, x) + self.bias, -1)


def test_single_numbers_may_be_part_of_a_mask():
    """As files have them: `1 - mask` reads the one from a tensor."""

    class Masked(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("one", torch.tensor(1.0))

        def forward(self, x, mask):
            return torch.softmax(torch.matmul(x, x) + (self.one - mask.float()) * -1e4, -1)

    found = planned(Masked(), torch.randn(2, 3, 3), torch.ones(3, 3) > 0, backend=SOFTMAX)
    assert found["add"].reason == "a mask leaves no range for the scores"


def test_infinities_written_into_zeros_are_a_mask():
    """What torch's exporter makes of the padding mask of `nn.TransformerEncoder`."""

    class Padded(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("least", torch.tensor(-torch.inf))
            self.register_buffer("zeros", torch.zeros(3, 3))

        def forward(self, x, mask):
            return torch.softmax(torch.matmul(x, x) + torch.where(mask, self.least, self.zeros), -1)

    found = planned(Padded(), torch.randn(2, 3, 3), torch.ones(3, 3) > 0, backend=SOFTMAX)
    assert found["where"].reason == "a mask"
    assert quantized(found) == ["x", "matmul", "softmax"]


@pytest.mark.parametrize("least", [-1e4, torch.finfo(torch.float32).min])
def test_a_number_in_the_place_of_an_infinity_is_one(least):
    assert planned(Causal(least), torch.randn(2, 3, 3), backend=SOFTMAX)["bias"].reason == "a mask"


def test_a_constant_with_infinities_is_a_mask_and_another_is_a_bias():
    assert planned(Causal(-torch.inf), torch.randn(2, 3, 3), backend=SOFTMAX)["bias"].reason == "a mask"
    assert "bias" in quantized(planned(Causal(-2.0), torch.randn(2, 3, 3), backend=SOFTMAX))


def test_pixels_that_come_as_whole_numbers_are_no_mask():
    found = planned(
        Net(lambda n, x: n.a(x.float() * 0.01), a=nn.Conv2d(4, 4, 1)),
        torch.randint(0, 255, (2, 4, 5, 5)),
        backend=SOFTMAX,
    )
    assert quantized(found) == ["float_1", "mul", "a"]


# ---- recipes ----


def test_an_excluded_layer_asks_for_nothing_and_its_neighbors_do():
    found = planned(
        Net(lambda n, x: n.b(F.gelu(n.a(x))), **convs()), backend=target(quantize_inputs("conv")), exclude=["b"]
    )
    assert [entry.tensor for entry in found.quantized] == ["x", "a.weight"]
    assert found["gelu"].reason == "the recipe excludes b"
    assert found["b.weight"].reason == found["b.bias"].reason == "the recipe excludes it"


def test_weights_alone_and_activations_alone():
    net = Net(lambda n, x: n.b(F.gelu(n.a(x))), **convs())
    backend = target(quantize_inputs("conv"), bias="int32")
    found = planned(net, backend=backend, activation={"quantize": False})
    assert [entry.tensor for entry in found.quantized] == ["a.weight", "b.weight"]
    assert found["x"].reason == "the recipe keeps what a takes in float"
    assert found["a.bias"].reason == "a takes in a float tensor"
    found = planned(net, backend=backend, weight={"quantize": False})
    assert [entry.tensor for entry in found.quantized] == ["x", "gelu"]
    assert found["a.bias"].reason == "the recipe excludes it"
    found = planned(net, backend=backend, bias={"quantize": False})
    assert found["a.bias"].reason == "the recipe keeps biases float"


def test_a_tensor_that_two_layers_take_in_has_the_wider_of_what_they_ask_for():
    backend = Backend(
        name="toy",
        about="",
        weight=SupportedSchemes(bits=(8, 4)),
        activation=SupportedSchemes(bits=(8, 4)),
        rules=quantize_inputs("conv"),
    )
    rules = [{"match": {"name": "a"}, "activation": {"bits": 4}}, {"match": {"name": "b"}, "weight": {"bits": 4}}]
    found = planned(Net(lambda n, x: n.a(x) - n.b(x), **convs()), backend=backend, rules=rules)
    assert str(found["x"].scheme) == INT8
    assert found.notes == (
        "a asks for bits 4 of x, and gets int8 symmetric per-tensor by fixed < minmax: "
        "b reads it too, and a tensor has one grid, the widest asked for",
    )
    found = planned(Net(lambda n, x: n.a(x) - x, **convs()), backend=backend, rules=rules[:1])
    assert str(found["x"].scheme) == "int4 symmetric per-tensor"
    assert found.notes == ()


@pytest.mark.parametrize(
    ("said", "missed"),
    [
        ({"rules": [{"match": {"name": "a"}, "activation": {"bits": 8}}]}, []),
        ({"rules": [{"match": {"kind": "conv"}, "activation": {"bits": 4}}]}, []),
        ({"rules": [{"match": {"name": "b"}, "activation": {"observer": "mse"}}]}, ["b asks for observer mse of x"]),
        (
            {
                "activation": {"observer": "mse"},
                "rules": [
                    {"match": {"name": "b"}, "activation": {"observer": "mse", "observer_options": {"norm": 3.0}}}
                ],
            },
            ["b asks for observer_options norm=3.0 of x"],
        ),
        (
            {"activation": {"bits": 4}, "rules": [{"match": {"name": "a"}, "activation": {"bits": 8}}]},
            ["b asks for bits 4 of x"],
        ),
    ],
    ids=["what-it-has", "all-readers", "observer", "options", "the-recipe-s-own-width"],
)
def test_what_a_reader_asks_for_and_does_not_get_is_noted(said, missed):
    backend = Backend(
        name="toy",
        about="",
        weight=SupportedSchemes(),
        activation=SupportedSchemes(bits=(8, 4)),
        rules=quantize_inputs("conv"),
    )
    found = planned(Net(lambda n, x: n.a(x) - n.b(x), **convs()), backend=backend, **said)
    assert [note.partition(", and gets")[0] for note in found.notes] == missed


def test_a_rule_for_one_of_those_that_share_a_grid_is_noted():
    backend = Backend(
        name="toy",
        about="",
        weight=SupportedSchemes(),
        activation=SupportedSchemes(bits=(8, 4)),
        rules=quantize_inputs("conv"),
        passthrough=("maxpool",),
    )
    rules = [{"match": {"kind": "maxpool"}, "activation": {"bits": 4}}]
    found = planned(Net(lambda n, x: n.a(F.max_pool2d(x, 2)), **convs()), backend=backend, rules=rules)
    (note,) = found.notes
    assert note.endswith("tensors on one grid have the widest that is asked for by those who read them")


def test_a_layer_that_asks_for_a_float_input_where_the_target_stores_integers_is_noted():
    net = Net(lambda n, x: n.b(F.relu(n.a(x))), **convs())
    rules = [{"match": {"name": "b"}, "activation": {"quantize": False}}]
    found = planned(net, backend="onnxruntime", rules=rules)
    assert found.notes == (
        "b asks for quantize False of relu, and gets uint8 affine per-tensor by fixed < minmax: "
        "onnxruntime stores what relu gives so",
    )
    found = planned(net, backend="openvino", rules=rules)
    assert found["relu"].reason == "the recipe keeps what b takes in float"
    assert found.notes == ()


def test_a_request_for_a_range_that_the_target_fixes_is_noted():
    backend = Backend(
        name="toy",
        about="",
        weight=SupportedSchemes(),
        activation=SupportedSchemes(bits=(8, 4)),
        rules=quantize_inputs("conv"),
        ranges={"sigmoid": (0.0, 1.0)},
    )
    rules = [{"match": {"name": "a"}, "activation": {"bits": 4}}]
    found = planned(Net(lambda n, x: n.a(torch.sigmoid(x)), **convs()), backend=backend, rules=rules)
    (note,) = found.notes
    assert note.startswith("a asks for bits 4 of sigmoid")
    assert note.endswith("toy fixes the range of sigmoid")


# ---- first and last layers ----


def ends(forward=lambda n, x: n.c(F.relu(n.b(F.relu(n.a(x))))), bits=4, **said):
    net = Net(forward, c=nn.Conv2d(4, 4, 1), **convs())
    found = planned(net, backend="academic", weight={"bits": bits}, activation={"bits": bits}, **said)
    return {entry.tensor: entry.scheme.grid.bits for entry in found.quantized}


def test_first_and_last_layers_and_what_they_take_in_have_their_own_width():
    assert ends() == {"x": 8, "a.weight": 8, "relu": 4, "b.weight": 4, "relu_1": 8, "c.weight": 8}


def test_they_are_no_narrower_than_the_others():
    assert set(ends(bits=16).values()) == {16}


def test_every_first_and_every_last_layer_counts():
    assert ends(lambda n, x: (n.b(F.relu(n.a(x))), n.c(x)))["b.weight"] == 8
    found = ends(lambda n, x: n.c(F.relu(n.a(x)) + F.relu(n.b(x))))
    assert (found["a.weight"], found["b.weight"], found["c.weight"]) == (8, 8, 8)


def test_a_network_that_ends_in_an_add_has_its_last_layer_last():
    assert ends(lambda n, x: n.a(x) + n.c(F.relu(n.b(F.relu(n.a(x))))))["c.weight"] == 8


def test_a_rule_may_say_otherwise():
    assert ends(rules=[{"match": {"name": "a"}, "weight": {"bits": 2}}])["a.weight"] == 2


# ---- signs ----


@pytest.mark.parametrize(
    ("forward", "grid"),
    [
        pytest.param(lambda x: F.relu(x), "uint8", id="relu"),
        pytest.param(lambda x: F.max_pool2d(F.relu(x), 2), "uint8", id="pool-of-relu"),
        pytest.param(lambda x: F.relu(x) + torch.sigmoid(x), "uint8", id="sum"),
        pytest.param(lambda x: F.relu(x) * 2 + 1, "uint8", id="positive-numbers"),
        pytest.param(lambda x: F.relu(x) * -2, "int8", id="times-a-negative-number"),
        pytest.param(lambda x: F.relu(x) + -1, "int8", id="plus-a-negative-number"),
        pytest.param(lambda x: F.relu(x) + x, "int8", id="plus-anything"),
        pytest.param(lambda x: F.relu(x) - F.relu(x), "int8", id="difference"),
        pytest.param(lambda x: F.relu(x).reshape(-1, 4, 1, 1), "uint8", id="reshape-by-minus-one"),
    ],
)
def test_unsigned_codes_where_a_tensor_cannot_be_negative(forward, grid):
    found = planned(Net(lambda n, x: n.a(forward(x)), **convs()), backend="academic")
    (entry,) = [entry for entry in found.quantized if entry.role == "activation"]
    assert str(entry.scheme) == f"{grid} symmetric per-tensor"

"""From a module to graphs: the same numbers, the same names, the model untouched, and nothing refused."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import detent
from detent.errors import CaptureError
from detent.graph import CustomTracer, Region, capture
from tests.graph.nets import Net, assert_close, captured_of, every_model, fresh_inputs, made, run, tensors

# The graph calls the same kernels in the same order; 1e-6 is room for torch choosing another of them.
SAME = 1e-6


def targets(region):
    """What each graph of a region calls, by mode."""
    return {
        mode: [str(node.target) for node in graph.nodes if node.op.startswith("call")]
        for mode, graph in region.graphs.items()
    }


# --- every network -----------------------------------------------------------------------------------------


@every_model
def test_the_captured_model_computes_what_the_model_computes(name):
    model, inputs = made(name)
    captured = capture(model, inputs)
    others = fresh_inputs(name)
    for batch in (inputs, others):
        assert_close(run(captured.module, batch), run(model, batch), SAME)


@every_model
def test_state_dict_names_are_those_of_the_model_outside_of_graph_breaks(name):
    model, inputs = made(name)
    captured = capture(model, inputs)

    def outside(keys):
        return [key for key in keys if not any(key.startswith(f"{each}.") for each in captured.graph_breaks)]

    assert outside(captured.module.state_dict()) == outside(model.state_dict())
    assert len(captured.module.state_dict()) == len(model.state_dict())


@every_model
def test_capturing_leaves_the_model_as_it_was(name):
    model, inputs = made(name)
    model.train()
    next(model.children()).eval()  # a flag that is not that of the root
    identities = {path: id(module) for path, module in model.named_modules()}
    parameters = {
        path: (id(tensor), tensor.detach().clone()) for path, tensor in model.state_dict(keep_vars=True).items()
    }
    flags = {path: module.training for path, module in model.named_modules()}
    attributes = {path: set(vars(module)) for path, module in model.named_modules()}
    capture(model, inputs)
    assert {path: id(module) for path, module in model.named_modules()} == identities
    assert {path: module.training for path, module in model.named_modules()} == flags
    assert {path: set(vars(module)) for path, module in model.named_modules()} == attributes
    for path, tensor in model.state_dict(keep_vars=True).items():
        before, numbers = parameters[path]
        assert id(tensor) == before, path
        assert torch.equal(tensor, numbers), path
    assert not any(module.__dict__["_forward_pre_hooks"] for module in model.modules())


@every_model
def test_only_the_network_with_a_branch_on_data_has_graph_breaks(name):
    model, inputs = made(name)
    assert set(capture(model, inputs).graph_breaks) == ({"gate"} if name == "control_flow" else set())


@every_model
def test_a_captured_model_trains_with_the_same_gradients(name):
    model, inputs = made(name)
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    captured = capture(model, inputs).module
    twins = []
    for net in (model, captured):
        net.train()
        sum(output.square().mean() for output in tensors(net(*copy.deepcopy(inputs)))).backward()
        twins.append([p.grad for p in net.parameters() if p.grad is not None])
    assert len(twins[0]) == len(twins[1]) > 0
    for ours, theirs in zip(*twins, strict=True):
        # Gradients of a batch norm over two images are sums of many terms: 1e-4 is float32 noise on them.
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)


def test_flags_of_the_parts_survive_capturing():
    model = Net(lambda net, x: net.b(net.a(x)), a=nn.BatchNorm2d(3), b=nn.Dropout())
    model.train()
    model.a.eval()  # a frozen batch norm
    captured = capture(model, (torch.randn(2, 3, 4, 4),)).module
    assert (captured.training, captured.a.training, captured.b.training) == (True, False, True)


def test_in_place_captures_the_model_itself():
    model, inputs = made("resnet18")
    weights = [id(p) for p in model.parameters()]
    captured = capture(model, inputs, inplace=True)
    assert [id(p) for p in captured.module.parameters()] == weights
    copied = capture(model, inputs)
    assert not set(weights) & {id(p) for p in copied.module.parameters()}


# --- modes of a module -------------------------------------------------------------------------------------


def test_train_and_eval_reach_batch_norm_and_dropout():
    model = nn.Sequential(nn.Conv2d(3, 8, 1), nn.BatchNorm2d(8), nn.Dropout(0.5)).eval()
    x = torch.randn(4, 3, 5, 5)
    captured = capture(model, (x,)).module
    assert torch.equal(captured(x), captured(x))
    before = captured.get_submodule("1").running_mean.clone()
    captured.train()
    assert (captured(x) == 0).float().mean() > 0.3  # half of the values are dropped
    assert not torch.equal(captured.get_submodule("1").running_mean, before)
    captured.eval()
    assert torch.equal(captured(x), captured(x))


class FunctionalDropout(nn.Module):
    def __init__(self, *, training: Any):
        super().__init__()
        self.fc = nn.Linear(200, 200)
        self._always = training

    def forward(self, x):
        return F.dropout(self.fc(x), 0.5, self.training if self._always is None else self._always)


@pytest.mark.parametrize(
    ("training", "in_train", "in_eval"),
    [
        pytest.param(None, True, False, id="self.training"),
        pytest.param(True, True, True, id="always"),
        pytest.param(False, False, False, id="never"),
    ],
)
@pytest.mark.parametrize("captured_in", [True, False], ids=["captured-in-train", "captured-in-eval"])
def test_functional_dropout_keeps_its_two_modes(training, in_train, in_eval, captured_in):
    x = torch.randn(3, 200)
    model = FunctionalDropout(training=training).train(captured_in)
    captured = capture(model, (x,)).module
    assert captured.training is captured_in

    def drops(mode):
        share = (captured.train(mode)(x) == 0).float().mean().item()
        assert share < 0.01 or 0.4 < share < 0.6
        return share > 0.1

    assert (drops(True), drops(False)) == (in_train, in_eval)


def test_functional_dropout_inside_a_captured_child_follows_the_child():
    model = nn.Sequential(FunctionalDropout(training=None), nn.ReLU())
    x = torch.randn(3, 200)
    captured = capture(model.eval(), (x,)).module
    assert torch.equal(captured(x), captured(x))
    assert not torch.equal(captured.train()(x), captured(x))


# --- what stays one ----------------------------------------------------------------------------------------


def test_a_module_called_twice_stays_one_module():
    model, inputs = made("reused_module")
    captured, region, _ = captured_of(model, *inputs)
    assert targets(region)["forward"][:4] == ["conv", "relu", "conv", "relu"]
    assert [name for name, _ in captured.module.named_modules()] == ["", "conv", "relu", "fc"]
    assert len(list(captured.module.parameters())) == len(list(model.parameters()))


def test_two_names_of_one_module_stay_one():
    conv = nn.Conv2d(3, 3, 1)
    model = Net(lambda net, x: net.b(net.a(x)), a=conv, b=conv)
    x = torch.randn(1, 3, 4, 4)
    captured = capture(model.eval(), (x,)).module
    assert captured.a is captured.b
    assert_close(run(captured, (x,)), run(model, (x,)), SAME)


# --- arguments ---------------------------------------------------------------------------------------------


class Masked(nn.Module):
    """An optional argument, and one with a default that is a number."""

    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 4)

    def forward(self, x, mask=None, *, gain=2.0):
        y = self.fc(x) * gain
        if mask is not None:
            y = y * mask
        return y


def test_an_optional_argument_that_is_not_given_keeps_its_default():
    model, x = Masked().eval(), torch.randn(3, 4)
    captured = capture(model, (x,))
    assert not captured.graph_breaks
    assert_close(captured.module(x), model(x), SAME)


def test_an_optional_argument_that_is_given_is_an_input():
    model, x = Masked().eval(), torch.randn(3, 4)
    captured = capture(model, (x, torch.ones(3, 4)))
    mask = torch.rand(3, 4)
    assert_close(captured.module(x, mask), model(x, mask), SAME)


def test_keyword_arguments_are_called_by_keyword():
    model, x, mask = Masked().eval(), torch.randn(3, 4), torch.rand(3, 4)
    captured = capture(model, (x,), example_kwargs={"mask": mask})
    other = torch.rand(3, 4)
    assert_close(captured.module(x, mask=other), model(x, mask=other), SAME)
    assert_close(captured.module(x=x, mask=other), model(x, mask=other), SAME)


class NumberedNames(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 4)

    def forward(self, x_1, x=None):
        return self.fc(x_1) if x is None else self.fc(x)


def test_an_argument_whose_name_is_a_constants_name_and_a_number_stays_an_input():
    model, x = NumberedNames().eval(), torch.randn(3, 4)
    captured = capture(model, (x,))
    assert not captured.graph_breaks
    other = torch.randn(3, 4)
    assert_close(captured.module(other), model(other), SAME)


class StarArguments(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 4)

    def forward(self, *parts):
        return self.fc(torch.stack(parts).sum(0))


def test_star_arguments_work():
    model, parts = StarArguments().eval(), (torch.randn(3, 4), torch.randn(3, 4))
    captured = capture(model, parts)
    assert_close(captured.module(*parts), model(*parts), SAME)


@dataclass
class Pair:
    first: torch.Tensor
    second: torch.Tensor


class Containers(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 4)

    def forward(self, batch):
        first, second = (batch.first, batch.second) if isinstance(batch, Pair) else self.parts(batch)
        return {"sum": first + self.fc(second), "both": (first, [second * 2])}

    def parts(self, batch):
        return (batch["first"], batch["second"]) if isinstance(batch, dict) else (batch[0], batch[1])


@pytest.mark.parametrize(
    "pack",
    [
        pytest.param(lambda a, b: {"first": a, "second": b}, id="dict"),
        pytest.param(lambda a, b: (a, b), id="tuple"),
        pytest.param(lambda a, b: [a, b], id="list"),
        pytest.param(Pair, id="dataclass"),
    ],
)
def test_containers_go_in_and_nested_ones_come_out(pack):
    model = Containers().eval()
    a, b, c, d = torch.randn(4, 3, 4)
    captured = capture(model, (pack(a, b),)).module
    assert_close(captured(pack(c, d)), model(pack(c, d)), SAME)
    assert list(captured(pack(c, d))) == ["sum", "both"]


class NamedPair(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 4)

    def forward(self, x):
        return Pair(first=self.fc(x), second=x)


def test_a_dataclass_comes_out():
    model, x = NamedPair().eval(), torch.randn(3, 4)
    result = capture(model, (x,)).module(x)
    assert isinstance(result, Pair)
    assert_close(result, model(x), SAME)


def test_in_place_operators_keep_their_results_and_do_not_spoil_the_example():
    def forward(net, x):
        y = net.conv(x)
        y += 1
        y *= 2
        z = y.relu_()
        y.add_(z)
        return F.relu(y, inplace=True) - z.clamp_(max=1.0)

    model, x = Net(forward, conv=nn.Conv2d(3, 4, 1)).eval(), torch.randn(2, 3, 4, 4)
    kept = x.clone()
    captured = capture(model, (x,))
    assert not captured.graph_breaks
    assert torch.equal(x, kept)
    other = torch.randn(2, 3, 4, 4)
    assert_close(run(captured.module, (other,)), run(model, (other,)), SAME)


def test_a_model_that_writes_into_its_input_is_still_captured_whole():
    def forward(net, x):
        x += 1.0
        return net.fc(x)

    model, x = Net(forward, fc=nn.Linear(4, 4)).eval(), torch.randn(3, 4)
    kept = x.clone()
    captured = capture(model, (x,))
    assert not captured.graph_breaks
    assert torch.equal(x, kept), "the example inputs are the caller's"


def test_buffers_that_are_not_saved_stay_so():
    model = Net(lambda net, x: net.fc(x) + net.shift, fc=nn.Linear(4, 4))
    model.register_buffer("shift", torch.ones(4), persistent=False)
    captured = capture(model.eval(), (torch.randn(2, 4),)).module
    assert list(captured.state_dict()) == ["fc.weight", "fc.bias"]
    assert dict(captured.named_buffers())["shift"].tolist() == [1, 1, 1, 1]


# --- forward modes -----------------------------------------------------------------------------------------

MODES = {"tensor": {"mode": "tensor"}, "predict": {"mode": "predict"}, "loss": {"mode": "loss"}}


def test_forward_modes_are_graphs_over_one_set_of_weights():
    model, (x,) = made("several_modes")
    labels = torch.tensor([1, 3])
    captured = capture(model, (x,), example_kwargs={"labels": labels}, modes=MODES)
    assert not captured.graph_breaks
    assert list(captured.regions[""].graphs) == ["tensor", "predict", "loss"]
    assert list(captured.module.state_dict()) == list(model.state_dict())
    other, truth = torch.randn_like(x), torch.tensor([0, 4])
    for mode in MODES:
        assert_close(captured.module(other, labels=truth, mode=mode), model(other, mode=mode, labels=truth), SAME)


def test_a_weight_changed_is_changed_in_every_mode():
    model, (x,) = made("several_modes")
    captured = capture(model, (x,), modes={"tensor": {"mode": "tensor"}, "predict": {"mode": "predict"}}).module
    with torch.no_grad():
        captured.fc.weight.zero_()
        captured.fc.bias.copy_(torch.arange(5.0))
    assert torch.equal(captured(x, mode="tensor"), torch.arange(5.0).expand(2, 5))
    assert_close(captured(x, mode="predict"), torch.softmax(torch.arange(5.0), 0).expand(2, 5), SAME)


def test_without_a_mode_the_first_one_runs():
    model, (x,) = made("several_modes")
    captured = capture(model, (x,), modes={"predict": {"mode": "predict"}, "tensor": {"mode": "tensor"}}).module
    assert_close(captured(x), model(x, mode="predict"), SAME)


def test_one_mode_is_a_constant_argument():
    model, (x,) = made("several_modes")
    captured = capture(model, (x,), modes={"predict": {"mode": "predict"}})
    assert_close(captured.module(x), model(x, mode="predict"), SAME)


def test_an_unknown_mode_names_the_ones_there_are():
    model, (x,) = made("several_modes")
    captured = capture(model, (x,), modes={"predict": {"mode": "predict"}, "tensor": {"mode": "tensor"}}).module
    with pytest.raises(CaptureError, match="predict"):
        captured(x, mode="train")


# --- graph breaks -----------------------------------------------------------------------------------------------


def test_the_island_is_the_smallest_module_that_cannot_be_traced():
    model, inputs = made("control_flow")
    captured = capture(model, inputs)
    assert list(captured.graph_breaks) == ["gate"]
    assert "depends on the numbers in a tensor" in captured.graph_breaks["gate"]
    assert type(captured.module.gate) is type(model.gate)


def test_the_children_of_an_island_are_captured_in_turn():
    model, inputs = made("control_flow")
    captured = capture(model, inputs)
    x = model.project(model.before(*inputs))
    called, other = ("positive", "negative") if x.sum() > 0 else ("negative", "positive")
    assert f"gate.{called}" in captured.regions
    assert f"gate.{other}" not in captured.regions  # nothing is known of the inputs of a child that was not called


class Branch(nn.Module):
    """Python that depends on data, around children of each sort."""

    def __init__(self):
        super().__init__()
        self.block = nn.Sequential(nn.Conv2d(4, 4, 1), nn.ReLU())
        self.single = nn.Conv2d(4, 4, 1)
        self.listed = nn.ModuleList([nn.Conv2d(4, 4, 1), nn.Sequential(nn.Conv2d(4, 4, 1), nn.ReLU())])

    def forward(self, x, *, flip=False):
        if x.sum() > 1e9:
            return x
        x = self.single(self.block(-x if flip else x))
        for part in self.listed:
            x = part(x)
        return x


class Around(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(4, 4, 1)
        self.branch = Branch()
        self.head = nn.Conv2d(4, 4, 1)

    def forward(self, x):
        return self.head(self.branch(self.stem(x), flip=True))


def test_regions_inside_an_island_are_named_by_their_place():
    model, x = Around().eval(), torch.randn(2, 4, 5, 5)
    captured = capture(model, (x,))
    assert sorted(captured.regions) == ["", "branch.block", "branch.listed.0", "branch.listed.1", "branch.single"]
    assert all(isinstance(captured.module.get_submodule(name), Region) for name in captured.regions)
    other = torch.randn(2, 4, 5, 5)
    assert_close(run(captured.module, (other,)), run(model, (other,)), SAME)


def test_a_root_that_cannot_be_traced_is_a_graph_break():
    model, x = Branch().eval(), torch.randn(2, 4, 5, 5)
    captured = capture(model, (x,))
    assert list(captured.graph_breaks) == [""]
    assert isinstance(captured.module, Branch)
    assert sorted(captured.regions) == ["block", "listed.0", "listed.1", "single"]
    assert_close(run(captured.module, (x,)), run(model, (x,)), SAME)
    assert not isinstance(model.block, Region)


def test_a_graph_break_inside_a_graph_break():
    class Outer(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = Branch()
            self.fc = nn.Linear(4, 2)

        def forward(self, x):
            y = self.inner(x)
            return self.fc(y.mean((2, 3))) if y.abs().sum() > 0 else y

    model, x = Outer().eval(), torch.randn(2, 4, 5, 5)
    captured = capture(model, (x,))
    assert sorted(captured.graph_breaks) == ["", "inner"]
    assert {"fc", "inner.single", "inner.block"} <= set(captured.regions)
    assert_close(run(captured.module, (x,)), run(model, (x,)), SAME)


def test_a_branch_still_branches():
    model, inputs = made("control_flow")
    captured = capture(model, inputs).module
    for sign in (1, -1):
        x = sign * torch.rand(2, 3, 8, 8) * 5
        assert_close(run(captured, (x,)), run(model, (x,)), SAME)
    gate, taken = captured.gate, []
    for child in (gate.positive, gate.negative):
        child.register_forward_hook(lambda module, *_: taken.append(module))
    for sign in (1, -1):
        gate(sign * torch.rand(2, 8, 4, 4))
    assert taken == [gate.positive, gate.negative]


class DataAsNumber(nn.Module):
    """Traces, but to a graph with a number of the example in it."""

    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 4)
        self.calls = 0

    def forward(self, x):
        self.calls += 1
        return self.fc(x) * float(self.calls % 3)


def test_a_graph_that_computes_something_else_is_not_taken():
    captured = capture(DataAsNumber().eval(), (torch.ones(2, 4),))
    assert "something else" in captured.graph_breaks[""]
    assert sorted(captured.regions) == ["fc"]


def test_a_graph_break_called_twice_is_one():
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.branch = Branch()

        def forward(self, x):
            return self.branch(self.branch(x))

    model, x = Twice().eval(), torch.randn(2, 4, 5, 5)
    captured = capture(model, (x,))
    assert list(captured.graph_breaks) == ["branch"]
    assert_close(run(captured.module, (x,)), run(model, (x,)), SAME)


class Branching(nn.Module):
    def __init__(self):
        super().__init__()
        self.high, self.low = nn.Conv2d(3, 4, 1), nn.Conv2d(3, 4, 1)

    def forward(self, x):
        return self.high(x) if x.sum() > 0 else self.low(x)


def test_a_child_that_only_a_later_call_of_the_island_reaches_is_captured_too():
    both = Net(lambda n, x: n.branch(x) + n.branch(-x), branch=Branching())
    captured = capture(both, (torch.rand(2, 3, 5, 5),))
    assert list(captured.graph_breaks) == ["branch"]
    assert sorted(captured.regions) == ["", "branch.high", "branch.low"]


# --- left whole by wish ------------------------------------------------------------------------------------


class Scorer(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 4)

    def forward(self, x):
        return self.score(x, self.fc(x), power=2)

    def score(self, x, y, *, power):
        return (x * y).relu() ** power


class Ranker(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = Scorer(), Scorer()

    def forward(self, x):
        return self.second(self.first(x))


SCORE = f"{Scorer.__module__}.Scorer.score"


def test_a_skipped_method_is_one_node():
    model, x = Scorer().eval(), torch.randn(3, 4)
    _, whole, _ = captured_of(model, x)
    captured, region, graph = captured_of(model, x, skip_methods=[SCORE])
    assert len(targets(whole)["forward"]) == 4  # linear, mul, relu, pow
    assert len(targets(region)["forward"]) == 2  # linear, score
    other = torch.randn(3, 4)
    assert_close(run(captured.module, (other,)), run(model, (other,)), SAME)
    assert graph.output_node().args[0].kwargs == {"power": 2}


def test_a_skipped_method_keeps_the_names_of_the_parameters():
    model, x = Ranker().eval(), torch.randn(3, 4)
    captured, region, _ = captured_of(model, x, skip_methods=[SCORE])
    assert list(captured.module.state_dict()) == list(model.state_dict())
    assert targets(region)["forward"] == ["first.fc", "first_score", "second.fc", "second_score"]
    assert_close(run(captured.module, (x,)), run(model, (x,)), SAME)


def test_a_skipped_method_of_no_module_is_one_node():
    model = Net(lambda net, x: Helper.decode(net.fc(x)), fc=nn.Linear(4, 4)).eval()
    x = torch.randn(3, 4)
    captured, region, _ = captured_of(model, x, skip_methods=[f"{__name__}.Helper.decode"])
    assert not captured.graph_breaks
    assert len(targets(region)["forward"]) == 2
    assert_close(run(captured.module, (x,)), run(model, (x,)), SAME)


class Helper:
    @staticmethod
    def decode(x):
        return x * 2 if x.sum() > 0 else x


def test_a_skipped_method_uses_the_weights_it_is_copied_with():
    class Weighted(nn.Module):
        def __init__(self):
            super().__init__()
            self.gain = nn.Parameter(torch.ones(4))

        def forward(self, x):
            return self.scaled(x)

        def scaled(self, x):
            return x * self.gain

    Helper.Weighted = Weighted
    model, x = Weighted().eval(), torch.randn(3, 4)
    captured = capture(model, (x,), skip_methods=[f"{__name__}.Helper.Weighted.scaled"]).module
    with torch.no_grad():
        captured.gain.mul_(3)
    assert_close(run(captured, (x,)), 3 * x, SAME)
    assert_close(run(model, (x,)), x, SAME)
    twin = copy.deepcopy(captured)
    with torch.no_grad():
        twin.gain.mul_(2)
    assert_close(run(twin, (x,)), 6 * x, SAME)
    assert_close(run(captured, (x,)), 3 * x, SAME)


def test_skipping_ends_with_the_capture():
    before = Scorer.score
    capture(Scorer().eval(), (torch.randn(3, 4),), skip_methods=[SCORE])
    assert Scorer.score is before


@pytest.mark.parametrize(
    "dotted", ["nowhere.Class.method", f"{Scorer.__module__}.Scorer.scor", f"{Scorer.__module__}.Nobody.score", "score"]
)
def test_an_unknown_method_is_refused(dotted):
    with pytest.raises(CaptureError) as refusal:
        capture(Scorer(), (torch.randn(3, 4),), skip_methods=[dotted])
    assert dotted in refusal.value.asked
    assert "package.module.Class.method" in refusal.value.to_do


@pytest.mark.parametrize("leaf", ["first", Scorer], ids=["by-name", "by-class"])
def test_a_leaf_module_is_one_node(leaf):
    model, x = Ranker().eval(), torch.randn(3, 4)
    captured, region, _ = captured_of(model, x, leaf_modules=[leaf])
    calls = targets(region)["forward"]
    assert calls[0] == "first"
    assert ("second" in calls) == (leaf is Scorer)
    assert_close(run(captured.module, (x,)), run(model, (x,)), SAME)


def test_a_leaf_module_inside_an_island_is_found_by_its_name():
    model, x = Around().eval(), torch.randn(2, 4, 5, 5)
    captured = capture(model, (x,), leaf_modules=["branch.block"])
    region = captured.regions["branch.block"]
    assert len(targets(region)["forward"]) == 1
    assert_close(run(captured.module, (x,)), run(model, (x,)), SAME)


def test_an_unknown_leaf_module_is_refused_with_the_nearest_name():
    with pytest.raises(CaptureError) as refusal:
        capture(Ranker(), (torch.randn(3, 4),), leaf_modules=["frist"])
    assert "'frist'" in refusal.value.asked
    assert "'first'" in refusal.value.to_do


# --- bad input ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("inputs", "said"),
    [
        pytest.param((torch.randn(2, 5, 16, 16),), "(2, 5, 16, 16)", id="wrong-channels"),
        pytest.param((torch.randn(7),), "(7,)", id="wrong-rank"),
        pytest.param((), "forward()", id="none"),
        pytest.param((torch.randn(2, 3, 16, 16), torch.randn(3)), "(2, 3, 16, 16), (3,)", id="one-too-many"),
        pytest.param((torch.ones(2, 3, 16, 16, dtype=torch.int64),), "(2, 3, 16, 16)", id="wrong-dtype"),
    ],
)
def test_wrong_example_inputs_are_refused_with_their_shapes(inputs, said):
    model, _ = made("residual_cnn")
    model.train()
    with pytest.raises(CaptureError) as refusal:
        capture(model, inputs, inplace=True)
    assert said in refusal.value.asked.replace("run the model on example inputs (", "forward(")
    assert model.training
    assert type(model) is type(made("residual_cnn")[0])


def test_a_model_on_two_devices_is_refused():
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3, device=torch.device("meta")))
    with pytest.raises(CaptureError, match=r"cpu.*meta"):
        capture(model, (torch.randn(2, 3),))


# --- copies ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["resnet18", "control_flow", "reused_module", "bert_encoder", "lstm_tagger"])
def test_a_deep_copy_is_independent_and_whole(name):
    model, inputs = made(name)
    captured = capture(model, inputs).module
    twin = copy.deepcopy(captured)
    expected = run(captured, inputs)
    assert_close(run(twin, inputs), expected, 0)
    with torch.no_grad():
        for parameter in twin.parameters():
            parameter.zero_()
    assert_close(run(captured, inputs), expected, 0)
    for ours, theirs in zip(tensors(run(twin, inputs)), tensors(expected), strict=True):
        assert not torch.equal(ours, theirs), "the graph of the copy runs the weights of the copy"


def test_a_deep_copy_trains_alone():
    model, inputs = made("residual_cnn")
    captured = capture(model, inputs).module
    twin = copy.deepcopy(captured).train()
    twin(*inputs).sum().backward()
    assert all(p.grad is not None for p in twin.parameters())
    assert all(p.grad is None for p in captured.parameters())
    assert not captured.training
    assert not torch.equal(twin.bn1.running_mean, captured.bn1.running_mean)


def test_moving_a_region_to_another_dtype_moves_what_its_graphs_read():
    model, (x,) = made("vit_small")
    captured = capture(model, (x,)).module.double()
    assert run(captured, (x.double(),)).dtype is torch.float64


def test_concrete_args_are_constants_that_the_result_no_longer_takes():
    class Chosen(nn.Module):
        def forward(self, x, double, by=2):
            return x * by if double else x

    x = torch.randn(3)
    captured = capture(Chosen(), (x,), concrete_args={"double": True, "by": 3})
    assert captured.graph_breaks == {}
    assert torch.equal(captured.module(x), x * 3)
    with pytest.raises(CaptureError, match="concrete_args and modes"):
        capture(Chosen(), (x,), concrete_args={"double": True}, modes={"on": {"double": True}})


def test_a_part_of_an_island_that_the_example_does_not_reach_is_named():
    class Fork(nn.Module):
        def __init__(self):
            super().__init__()
            self.up, self.down = nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, x):
            return self.up(x) if x.sum() > 0 else self.down(x)

    captured = capture(Fork(), (torch.ones(2, 4),))
    assert list(captured.regions) == ["up"]
    assert captured.uncalled == ["down"]
    notes = detent.prepare(Fork(), (torch.ones(2, 4),), backend="onnxruntime").plan.notes
    assert notes[-1] == "down stays float: the example inputs do not reach it"


def test_a_tracer_of_one_s_own_decides_what_is_a_leaf_and_sees_each_graph():
    traced = []

    class Mine(CustomTracer):
        def is_leaf_module(self, m, module_qualified_name):
            return isinstance(m, nn.Sequential) or super().is_leaf_module(m, module_qualified_name)

        def trace(self, root, concrete_args=None):
            traced.append(type(root))
            return super().trace(root, concrete_args)

    model = Net(lambda n, x: n.last(n.first(x)), first=nn.Sequential(nn.Linear(3, 3), nn.ReLU()), last=nn.ReLU())
    x = torch.randn(2, 3)
    captured = capture(model, (x,), tracer=Mine())
    assert traced == [Net]
    assert targets(captured.module) == {"forward": ["first", "last"]}
    assert_close(run(captured.module, (x,)), run(model, (x,)), SAME)
    assert targets(capture(model, (x,)).module) == {"forward": ["first.0", "first.1", "last"]}


def test_what_is_a_graph_already_runs_once():
    class Counting(nn.Conv2d):
        runs = 0

    def count(module: nn.Module, _: Any) -> None:
        type(module).runs += 1

    conv = Counting(3, 4, 1)
    conv.register_forward_pre_hook(count)
    graph = torch.fx.symbolic_trace(nn.Sequential(conv, nn.ReLU()))
    capture(graph, (torch.randn(2, 3, 4, 4),), inplace=True)
    assert Counting.runs == 1


def test_what_is_a_graph_already_and_does_not_run_says_why():
    graph = torch.fx.symbolic_trace(nn.Sequential(nn.Conv2d(3, 4, 1), nn.ReLU()))
    with pytest.raises(CaptureError, match=r"(?s)example inputs \(\(2, 5, 4, 4\)\).*expected input\[2, 5, 4, 4\]"):
        capture(graph, (torch.randn(2, 5, 4, 4),))


@pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning")
def test_of_a_compiled_model_the_module_inside_is_captured():
    model = nn.Sequential(nn.Conv2d(3, 4, 1), torch.compile(nn.Sequential(nn.ReLU(), nn.Conv2d(4, 2, 1))))
    x = torch.randn(2, 3, 4, 4)
    for compiled in (model, torch.compile(model)):
        captured = capture(compiled, (x,))
        assert sorted(captured.module.state_dict()) == ["0.bias", "0.weight", "1.1.bias", "1.1.weight"]
        assert_close(captured.module(x), model[1]._orig_mod(model[0](x)), SAME)
        assert "_orig_mod" in dict(compiled.named_modules(remove_duplicate=False)).popitem()[0]  # as it was


def test_what_torch_export_made_is_refused_by_name():
    exported = torch.export.export(nn.Conv2d(3, 4, 1), (torch.randn(2, 3, 4, 4),)).module()
    with pytest.raises(CaptureError, match=r"a module that torch\.export made"):
        capture(nn.Sequential(exported), (torch.randn(2, 3, 4, 4),))


@pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning")
def test_what_torch_jit_made_is_refused_by_name():
    with pytest.raises(CaptureError, match=r"capture '0', a module that torch\.jit made"):
        capture(nn.Sequential(torch.jit.script(nn.ReLU())), (torch.randn(2, 3, 4, 4),))

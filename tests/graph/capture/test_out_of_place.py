"""In-place operations: what they compute is kept, with quantizers on the way and in a deployed graph too."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import detent
from detent.graph import capture
from detent.recipes import Recipe
from tests.graph.nets import SIXTEEN, Net, assert_close, run

SIXTEEN_BITS = Recipe.from_dict({"name": "sixteen", "weight": {"bits": 16}, "activation": {"bits": 16}})
SAME = 1e-6


def net(forward):
    torch.manual_seed(0)
    parts = {"a": nn.Conv2d(4, 4, 3, padding=1), "b": nn.Conv2d(4, 4, 1), "fc": nn.Linear(4, 3)}
    return Net(forward, relu=nn.ReLU(inplace=True), drop=nn.Dropout(0.5, inplace=True), **parts).eval()


def image():
    torch.manual_seed(1)
    return torch.randn(2, 4, 8, 8)


def statement(n, x):
    z = n.b(x)
    z.add_(n.a(x))
    return n.fc(z.mean((2, 3)))


def module(n, x):
    z = n.b(x)
    n.relu(z)
    return n.fc(z.mean((2, 3)))


def several(n, x):
    z = n.b(x)
    torch.relu_(z)
    F.relu(z, inplace=True)
    F.hardtanh(z, 0.0, 0.5, True)
    z.clamp_(0, 0.4).mul_(2)
    z *= 0.5
    return n.fc(z.mean((2, 3)))


def residual(n, x):
    y = n.relu(n.a(x))
    z = n.b(y)
    z += y
    return n.fc(n.relu(z).mean((2, 3)))


def two_names(n, x):
    y = n.a(x)
    z = y.relu_()
    y.add_(z)
    return n.fc((y - z).mean((2, 3)) + z.mean((2, 3)))


def parts_of_a_split(n, x):
    y, z = n.a(x).chunk(2, 1)
    y.sigmoid_()
    return n.fc(torch.cat([y, z], 1).mean((2, 3)))


def dropped(n, x):
    return n.fc(n.drop(n.a(x).mean((2, 3))))


def view_of_what_changed(n, x):
    y = n.a(x)
    y.add_(1.0)
    z = y[:, :2]
    return n.fc(torch.cat([z, z], 1).mean((2, 3)))


def parts_changed(n, x):
    y = n.a(x)
    half = y.size(1) // 2
    y[:, :half].zero_()
    y[:, half:].mul_(0.5).add_(1.0)
    y[:, 1:2].fill_(0.25)
    return n.fc(y.mean((2, 3)))


def made_inside(n, x):
    y = torch.full((2, 4, 8, 8), 0.5)
    y += n.a(x)
    return n.fc(y.mean((2, 3)))


FORWARDS = [
    statement,
    module,
    several,
    residual,
    two_names,
    parts_of_a_split,
    dropped,
    view_of_what_changed,
    parts_changed,
    made_inside,
]
named = pytest.mark.parametrize("forward", FORWARDS, ids=lambda forward: forward.__name__)


@named
def test_the_captured_graph_computes_the_same(forward):
    model, x = net(forward), image()
    captured = capture(model, (x,))
    assert not captured.graph_breaks
    assert_close(run(captured.module, (x.clone(),)), run(model, (x.clone(),)), SAME)


def test_a_tensor_that_forward_makes_is_made_anew_each_time():
    captured, x = capture(net(made_inside), (image(),)), image()
    first = run(captured.module, (x,))
    assert torch.equal(run(captured.module, (x,)), first)


def targets(captured):
    nodes = [node for node in captured.regions[""].graphs["forward"].nodes if node.op.startswith("call")]
    return [node.target if isinstance(node.target, str) else node.target.__name__ for node in nodes]


def test_what_others_read_too_is_not_changed_any_more():
    captured = capture(net(statement), (image(),))
    assert targets(captured) == ["b", "a", "add", "mean", "fc"]
    captured = capture(net(several), (image(),))
    assert targets(captured) == ["b", "relu", "relu", "hardtanh", "clamp", "mul", "mul", "mean", "fc"]
    model = net(module)
    captured = capture(model, (image(),))
    assert not captured.module.relu.inplace
    assert model.relu.inplace  # of the model that was given


def test_what_nobody_else_reads_is_still_changed_in_place():
    captured = capture(net(residual), (image(),))
    assert captured.module.relu.inplace
    captured = capture(net(lambda n, x: n.fc(n.a(x).clamp_(0, 1).mean((2, 3)))), (image(),))
    assert targets(captured) == ["a", "clamp_", "mean", "fc"]


@pytest.mark.pairwise(strength=1)
@named
@pytest.mark.parametrize("backend", ["onnxruntime", "tensorrt", "openvino", "litert", "qnn"])
def test_quantized_it_is_close_to_the_float_model(forward, backend):
    model, x = net(forward), image()
    prepared = detent.prepare(model, (x,), backend=backend)
    detent.calibrate(prepared, [x])
    expected = run(model, (x.clone(),))
    # 8 bits in a few layers: under 2 percent. An operation that is lost shows as 20 and more.
    assert (run(prepared.eval(), (x.clone(),)) - expected).abs().max() < 0.05 * expected.abs().max()


@named
def test_it_trains_with_learned_scales(forward):
    """Quantizers keep what they take in for the backward pass: nothing may change it after."""
    model, x = net(forward), image()
    for backend in ("onnxruntime", "tensorrt"):
        prepared = detent.prepare(model, (x,), backend=backend, recipe="lsq")
        detent.calibrate(prepared, [x])
        prepared.train()(x).square().sum().backward()
        called = [name for name, _ in prepared.named_parameters() if not name.startswith(("a.", "b."))]
        assert all(prepared.get_parameter(name).grad is not None for name in called)


@pytest.mark.few(4)
@named
def test_the_engine_computes_what_was_simulated(forward, tmp_path):
    model, x = net(forward), image()
    prepared = detent.prepare(model, (x,), backend="onnxruntime")
    detent.calibrate(prepared, [x])
    verdict = detent.deploy(prepared, tmp_path / "out").verify([x], latency=False)
    assert verdict.holds, str(verdict)


def test_a_change_through_a_view_stays_python():
    def forward(n, x):
        z = n.a(x)
        z.view(2, -1).mul_(2.0)
        return n.fc(z.mean((2, 3)))

    model, x = net(forward), image()
    captured = capture(model, (x,))
    assert captured.graph_breaks[""] == "mul_ changes a in place, which is read elsewhere"
    prepared = detent.prepare(model, (x,), backend=SIXTEEN, recipe=SIXTEEN_BITS)
    detent.calibrate(prepared, [x])
    assert_close(run(prepared, (x,)), run(model, (x,)), 1e-3)


def test_a_part_that_is_read_after_it_changed_stays_python():
    def forward(n, x):
        y = n.a(x)
        part = y[:, :2]
        part.add_(1.0)
        return n.fc((y * part.mean()).mean((2, 3)))

    captured, x = capture(net(forward), (image(),)), image()
    assert captured.graph_breaks[""].startswith("becomes changes getitem in place, which is read elsewhere")
    assert_close(run(captured.module, (x,)), run(net(forward), (x,)), SAME)


class Changing(nn.Module):
    """What it is given is changed for whoever gave it."""

    def __init__(self):
        super().__init__()
        self.relu, self.conv = nn.ReLU(inplace=True), nn.Conv2d(4, 4, 1)

    def forward(self, x):
        return self.conv(self.relu(x))


def test_python_code_around_a_part_sees_what_the_part_changes():
    def forward(n, x):
        y = n.a(x)
        z = n.part(y)
        return z + y if x.sum() > -1e9 else z

    torch.manual_seed(0)
    model, x = Net(forward, a=nn.Conv2d(4, 4, 1), part=Changing()).eval(), image()
    captured = capture(model, (x,))
    assert_close(run(captured.module, (x,)), run(model, (x,)), SAME)


def test_in_code_that_stays_python_modules_go_on_working_in_place():
    def forward(n, x):
        y = n.a(x)
        n.relu(y)
        return y if x.sum() > -1e9 else x

    torch.manual_seed(0)
    model, x = Net(forward, a=nn.Conv2d(4, 4, 1), relu=nn.ReLU(inplace=True)).eval(), image()
    assert_close(run(capture(model, (x,)).module, (x,)), run(model, (x,)), SAME)


def test_state_that_a_model_keeps_is_still_changed():
    class Counting(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = nn.Linear(4, 4)
            self.register_buffer("seen", torch.zeros(4))

        def forward(self, x):
            self.seen.add_(x.sum(0))
            return self.fc(x)

    captured = capture(Counting(), (torch.ones(2, 4),)).module
    before = captured.seen.clone()
    captured(torch.ones(3, 4))
    assert torch.equal(captured.seen, before + 3)


def test_the_input_of_the_model_is_not_changed():
    model, x = net(lambda n, x: n.fc(n.a(n.relu(x)).mean((2, 3)))), image()
    kept = x.clone()
    run(capture(model, (x,)).module, (x,))
    assert torch.equal(x, kept)

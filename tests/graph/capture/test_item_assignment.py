"""Assignments to a part of a tensor: what is traced computes the same, for other batches too, and is deployed."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import detent
from detent.graph import capture
from tests.graph.nets import Net, run

pytestmark = pytest.mark.slow


def net(change):
    torch.manual_seed(0)
    parts = {"a": nn.Conv2d(3, 8, 3, padding=1), "b": nn.Conv2d(8, 4, 1)}
    return Net(lambda n, x: n.b(change(n.a(x))), **parts).eval()


def image(batch=2):
    torch.manual_seed(1)
    return torch.randn(batch, 3, 6, 6)


def channels(y):
    y[:, :2] = y[:, :2] * 2
    return y


def boxes(y):
    y = y.sigmoid()
    y[..., 0:2] = y[..., 0:2] * 2 - 0.5
    y[..., 2:4] = (y[..., 2:4] * 2) ** 2
    return y


def one_channel(y):
    z = y.clone()
    z[:, 0] = y[:, 1]
    return z


def one_number_of_each(y):
    z = y.clone()
    z[:, :, 0, -1] = y[:, :, 1, 1]
    return z


def a_block(y):
    y[:, 1:3, 2:5, -3:] = 0.5
    return y


def a_row_for_all(y):
    y[:, 1, 2] = torch.arange(6.0)
    return y


def halves(y):
    y[:, :4] = y[:, 4:]
    return y


def to_the_end(y):
    y[:, 6:] = y[:, :2]
    return y


def everything(y):
    z = torch.zeros_like(y)
    z[:] = y * 2
    return z


def masked(y):
    y[y < 0] = 0.25
    return y


def after_another_change(y):
    y[:, :2] = y[:, :2] * 2
    y.relu_()
    y[:, 3] = y[:, 2]
    return y


def one_sample(y):
    z = torch.zeros_like(y)
    z[0] = y[0]
    return z


def every_second_channel(y):
    y[:, ::2] = y[:, 1::2]
    return y


def one_of_three_columns(y):
    y[..., 1:-1:3] = 0.5
    return y


def twice_as_large(y):
    n, c, h, w = y.shape
    z = torch.zeros(n, c, 2 * h, 2 * w)
    z[:, :, ::2, ::2] = y
    z[:, :, 1::2, 1::2] = -y
    return z


def listed_channels(y):
    z = y.clone()
    z[:, [5, 0, -1]] = y[:, [1, 2, 3]]
    return z


CHANGES = [
    every_second_channel,
    one_of_three_columns,
    twice_as_large,
    listed_channels,
    channels,
    boxes,
    one_channel,
    one_number_of_each,
    a_block,
    a_row_for_all,
    halves,
    to_the_end,
    everything,
    masked,
    after_another_change,
    one_sample,
]
named = pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)


@named
def test_it_is_traced_and_computes_the_same(change):
    model = net(change)
    captured = capture(model, (image(),))
    assert not captured.graph_breaks
    for x in (image(), image(5)):
        assert torch.equal(run(captured.module, (x,)), run(model, (x.clone(),)))


@pytest.mark.pairwise(strength=1)
@pytest.mark.parametrize("backend", ["onnxruntime", "openvino", "litert", "ncnn", "torch_x86"])
@pytest.mark.parametrize(
    "change", [boxes, one_channel, to_the_end, twice_as_large, listed_channels], ids=lambda change: change.__name__
)
def test_the_engine_computes_what_was_simulated(change, backend, tmp_path):
    prepared = detent.prepare(net(change), (image(),), backend=backend)
    detent.calibrate(prepared, [image()])
    verdict = detent.deploy(prepared, tmp_path / "out").verify([image()], latency=False)
    assert verdict.holds, str(verdict)


def test_a_tensor_that_forward_makes_is_in_the_file_as_it_was_made(tmp_path):
    def change(y):
        z = torch.full((2, 8, 6, 6), 0.5)
        z[:, :4] = y[:, :4]
        z[:, 6:] = y[:, :2] * 2
        return z

    model, x = net(change), image()
    prepared = detent.prepare(model, (x,), backend="onnxruntime")
    detent.calibrate(prepared, [x])
    # 8 bits in a few layers: 1 or 2 percent.
    assert (run(prepared, (x,)) - run(model, (x,))).abs().max() < 0.05 * run(model, (x,)).abs().max()
    assert detent.deploy(prepared, tmp_path / "out").verify([x], latency=False).holds


def test_state_that_a_model_keeps_is_still_changed():
    class Remembering(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = nn.Linear(4, 4)
            self.register_buffer("seen", torch.zeros(4))

        def forward(self, x):
            self.seen[:] = x.sum(0)
            return self.fc(x)

    captured = capture(Remembering(), (torch.ones(2, 4),))
    assert not captured.graph_breaks
    captured.module(torch.full((3, 4), 2.0))
    assert captured.module.seen.tolist() == [6.0] * 4


def through_a_view(y):
    y[:, :4][:, :2] = 0.0
    return y


def seen_through_a_view(y):
    z = y[:, :2]
    y[:, :2] = 1.0
    return y + z.sum()


def by_steps_of_the_batch(y):
    y[::2] = 0.0
    return y


def last_of_the_batch(y):
    y[-1] = 0.0
    return y


def by_two_lists(y):
    y[:, [0, 3], [1, 2]] = 0.0
    return y


@pytest.mark.parametrize(
    "change",
    [through_a_view, seen_through_a_view, by_steps_of_the_batch, by_two_lists],
    ids=lambda change: change.__name__,
)
def test_what_cannot_be_written_so_stays_python_and_is_right(change):
    model = net(change)
    captured = capture(model, (image(),))
    assert captured.graph_breaks
    for x in (image(), image(5)):
        assert torch.equal(run(captured.module, (x,)), run(model, (x.clone(),)))


def test_the_last_of_a_batch_is_so_for_every_batch():
    model = net(last_of_the_batch)
    captured = capture(model, (image(),))
    assert not captured.graph_breaks
    for x in (image(1), image(), image(5)):
        assert torch.equal(run(captured.module, (x,)), run(model, (x.clone(),)))


def test_the_only_sample_of_an_example_is_not_taken_for_all_of_a_batch():
    def change(y):
        y[0] = y[0] * 2
        return y

    model = net(change)
    captured = capture(model, (image(1),))
    assert torch.equal(run(captured.module, (image(5),)), run(model, (image(5),)))

"""Code that symbolic tracing cannot follow comes through torch.export, as a graph of the same form."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import detent
from detent.errors import CaptureError, DeployError
from detent.graph import capture

pytestmark = pytest.mark.slow

# Both call the same kernels in the same order.
SAME = 1e-6


class Positions(nn.Module):
    """`self.pe[:, :x.size(1)]`, `self.tril[:T, :T]`."""

    def __init__(self):
        super().__init__()
        self.q, self.k, self.v = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 8)
        self.norm = nn.LayerNorm(8)
        self.register_buffer("pe", torch.randn(1, 16, 8))
        self.register_buffer("tril", torch.tril(torch.ones(16, 16)), persistent=False)

    def forward(self, x):
        steps = x.size(1)
        x = self.norm(x + self.pe[:, :steps])
        weights = self.q(x) @ self.k(x).transpose(1, 2) / 8**0.5
        weights = weights.masked_fill(self.tril[:steps, :steps] == 0, -1e4)
        weights = F.dropout(torch.softmax(weights, -1), 0.5, self.training)
        return weights @ self.v(x)


class Cells(nn.Module):
    """A loop over time, with a cell, from a state that a layer gives."""

    def __init__(self, kind: type[nn.Module] = nn.LSTMCell):
        super().__init__()
        self.start, self.cell, self.head = nn.Linear(8, 8), kind(8, 8), nn.Linear(8, 4)

    def forward(self, x):
        held: Any = self.start(x.mean(1))
        state = (held, torch.zeros_like(held)) if isinstance(self.cell, nn.LSTMCell) else held
        for step in range(x.size(1)):
            state = self.cell(x[:, step], state)
        return self.head(state[0] if isinstance(state, tuple) else state)


class Keywords(nn.Module):
    """`*args` and `**kwargs` passed on to a part."""

    def __init__(self):
        super().__init__()
        self.part = Positions()

    def forward(self, *args, **kwargs):
        out = self.part(*args)
        return out * kwargs["scale"][:, None, None] if "scale" in kwargs else out


class Anchors(nn.Module):
    """A detector's head: what it makes for one size of image is kept until the size changes."""

    def __init__(self):
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4)
        self.strides = torch.tensor([8.0, 16.0])
        self.shape: Any = None

    def forward(self, x):
        y = self.norm(self.conv(x))
        if self.shape != y.shape:
            rows, columns = torch.meshgrid(torch.arange(y.shape[2]), torch.arange(y.shape[3]), indexing="ij")
            self.anchors = torch.stack((columns, rows), -1).view(-1, 2).float() + 0.5
            self.shape = y.shape
        boxes = y.view(y.shape[0], 4, -1).transpose(1, 2)
        center = self.anchors.unsqueeze(0) + boxes[..., :2]
        return torch.cat([center * self.strides, boxes[..., 2:].sigmoid()], -1)


class Rotary(nn.Module):
    """Indices from positions, sines, masks combined, a value for each row by its own index."""

    def __init__(self):
        super().__init__()
        self.table, self.proj = nn.Embedding(20, 8), nn.Linear(8, 8)
        self.register_buffer("rate", 1.0 / (100 ** (torch.arange(4) / 4)), persistent=False)
        self.register_buffer("places", torch.arange(32), persistent=False)

    def forward(self, ids, mask):
        rows, steps = ids.shape
        x = self.table(ids)
        places = self.places[:steps]
        angle = places[:, None].float() * self.rate
        turned = torch.cat((-x[..., 4:], x[..., :4]), -1)
        x = x * torch.cat((angle, angle), -1).cos() + turned * torch.cat((angle, angle), -1).sin()
        allowed = (places[None, :] <= places[:, None]) & mask.bool()[:, None, :]
        scores = (self.proj(x) @ x.transpose(1, 2)).masked_fill(~allowed, -1e4)
        x = torch.softmax(scores, -1) @ x
        return x[torch.arange(rows, device=ids.device), mask.sum(-1) - 1]


def made(build):
    torch.manual_seed(0)
    return build().eval()


def tokens(rows=2, steps=5):
    return torch.randn(rows, steps, 8)


def ids(rows=2, steps=6):
    lengths = torch.arange(rows) % 3 + 2
    return torch.randint(0, 20, (rows, steps)), (torch.arange(steps) < lengths[:, None]).long()


NETS = {
    "positions": (Positions, lambda rows=2: (tokens(rows),)),
    "cells": (Cells, lambda rows=2: (tokens(rows),)),
    "anchors": (Anchors, lambda rows=2: (torch.randn(rows, 3, 8, 8),)),
    "rotary": (Rotary, ids),
}
every_net = pytest.mark.parametrize("name", list(NETS))


@pytest.mark.few(2)
@every_net
def test_it_is_one_graph_of_the_model_s_own_parts(name):
    build, inputs = NETS[name]
    model = made(build)
    captured = capture(model, inputs())
    assert captured.graph_breaks == {}
    assert list(captured.exported) == [""]
    assert list(captured.module.state_dict()) == list(model.state_dict())


@pytest.mark.pairwise(strength=1)
@every_net
@pytest.mark.parametrize("rows", [1, 2, 7])
def test_the_batch_is_free(name, rows):
    build, inputs = NETS[name]
    model = made(build)
    captured = capture(model, inputs())
    given = inputs(rows)
    assert torch.allclose(captured.module(*given), model(*given), atol=SAME)


def test_an_example_of_one_sample_leaves_the_batch_free():
    model = made(Positions)
    region = capture(model, (tokens(1),)).module
    x = tokens(3)
    assert torch.allclose(region(x), model(x), atol=SAME)


def test_lengths_are_free_up_to_what_the_code_takes():
    model = made(Positions)
    region = capture(model, (tokens(),)).module
    for steps in (2, 9, 16):
        x = tokens(2, steps)
        assert torch.allclose(region(x), model(x), atol=SAME)
    with pytest.raises(CaptureError, match="sizes"):
        region(tokens(2, 17))


def test_a_length_that_a_loop_has_counted_is_fixed():
    region = capture(made(Cells), (tokens(),)).module
    with pytest.raises(CaptureError, match="sizes"):
        region(tokens(2, 4))


@pytest.mark.few(1)
@pytest.mark.parametrize("kind", [nn.LSTMCell, nn.GRUCell, nn.RNNCell], ids=lambda kind: kind.__name__)
def test_cells_are_the_linear_layers_they_are_made_of(kind):
    torch.manual_seed(0)
    model, x = Cells(kind).eval(), tokens()
    captured = capture(model, (x,))
    assert torch.allclose(captured.module(x), model(x), atol=SAME)
    prepared = detent.prepare(model, (x,), backend="onnxruntime")
    weights = {entry.tensor for entry in prepared.plan.quantized if entry.role == "weight"}
    assert weights == {"start.weight", "cell.weight_ih.weight", "cell.weight_hh.weight", "head.weight"}
    prepared.load_state_dict(model.state_dict())


def test_arguments_that_are_passed_on():
    model = made(Keywords)
    captured = capture(model, (tokens(),), example_kwargs={"scale": torch.ones(2)})
    assert captured.graph_breaks == {}
    x, scale = tokens(3), torch.rand(3)
    assert torch.allclose(captured.module(x, scale=scale), model(x, scale=scale), atol=SAME)


@dataclass
class Record:
    first: Tensor
    rest: dict[str, Any]
    nothing: Tensor | None = None


class Structured(nn.Module):
    """A keyword-only dict in, a dataclass out, and options that are no tensors."""

    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 4)

    def forward(self, x, factor, *, more: dict[str, Tensor], flag=False, absent=None, **options):
        del absent
        y = self.fc(x) * factor
        if flag:
            y = y + more["a"] * len(options)
        return Record(y, {"list": [y, more["b"]], "number": 3})


def test_the_structure_of_inputs_and_outputs_is_kept():
    model = made(Structured)

    def arguments(rows):
        named = {"more": {"a": torch.randn(rows, 4), "b": torch.randn(rows)}, "flag": True, "absent": None}
        return (torch.randn(rows, 4), 2), named

    args, kwargs = arguments(2)
    captured = capture(model, args, example_kwargs=kwargs)
    assert captured.graph_breaks == {}
    args, kwargs = arguments(5)
    given, wanted = captured.module(*args, **kwargs), model(*args, **kwargs)
    assert isinstance(given, Record)
    assert given.nothing is None
    assert given.rest["number"] == 3
    assert torch.allclose(given.first, wanted.first, atol=SAME)
    assert torch.equal(given.rest["list"][1], wanted.rest["list"][1])
    with pytest.raises(CaptureError):
        captured.module(args[0], 3, **kwargs)


def test_attention_is_captured_in_its_parts_and_its_dropout_works_in_training():
    class Attention(Positions):
        def forward(self, x):
            x = x + self.pe[:, : x.size(1)]
            given = self.q(x), self.k(x), self.v(x)
            return F.scaled_dot_product_attention(*given, dropout_p=0.5 if self.training else 0.0)

    x = torch.randn(2, 5, 8)
    prepared = detent.prepare(Attention().eval(), (x,), backend="onnxruntime")
    assert sum(op.kind == "matmul" and op.runs == "quantized" for op in prepared.plan.ops) == 2
    detent.calibrate(prepared, [x])
    assert torch.equal(prepared(x), prepared(x))
    prepared.train()
    assert not torch.equal(prepared(x), prepared(x))


def test_dropout_of_a_function_trains_and_rests():
    region = capture(made(Positions), (tokens(),)).module
    x = tokens()
    assert torch.equal(region.eval()(x), region(x))
    assert not torch.equal(region.train()(x), region(x))


def test_what_code_keeps_between_calls_is_as_it_was_before():
    model = made(Anchors)
    capture(model, (torch.randn(2, 3, 8, 8),))
    assert model.shape is None
    assert not hasattr(model, "anchors")


def test_the_plan_says_how_the_graph_was_made_and_why():
    prepared = detent.prepare(made(Positions), (tokens(),), backend="onnxruntime")
    (note,) = [note for note in prepared.plan.notes if "torch.export" in note]
    assert note.startswith("the model came through torch.export: slice indices must be integers")
    assert "x = self.norm(x + self.pe[:, :steps])" in note
    traced = detent.prepare(nn.Sequential(nn.Linear(4, 4)), (torch.randn(2, 4),), backend="onnxruntime")
    assert not [note for note in traced.plan.notes if "torch.export" in note]


class Deciding(nn.Module):
    """A branch on numbers. Its code reads attributes and a weight of its parts."""

    def __init__(self):
        super().__init__()
        self.emb, self.conv, self.inner = nn.Embedding(10, 8), nn.Conv1d(8, 8, 3, stride=2), Positions()

    def forward(self, ids, *, scale=1.0, more=None):
        x = self.inner(self.emb(ids))
        if x.sum() > 1e6:
            x = x * 2
        y = self.conv(x.transpose(1, 2)).transpose(1, 2) * self.conv.stride[0] * scale
        y = y if more is None else y + more["a"]
        return {"logits": y @ self.emb.weight.t()}


@pytest.mark.few(1)
@pytest.mark.parametrize(
    "more",
    [{}, {"scale": 2.0, "more": {"a": torch.ones(8)}}],
    ids=["plain", "keywords"],
)
def test_a_graph_break_runs_and_its_parts_come_through_torch_export(more):
    model = made(Deciding)
    batch = {"ids": torch.randint(0, 10, (2, 7)), **more}
    prepared = detent.prepare(model, (), example_kwargs=batch, backend="onnxruntime")
    (why,) = [note for note in prepared.plan.notes if note.startswith("the model stays Python")]
    assert "if x.sum() > 1e6:" in why
    assert any(note.startswith("inner came through torch.export") for note in prepared.plan.notes)
    detent.calibrate(prepared, [batch, batch])
    given, wanted = prepared(**batch)["logits"], model(**batch)["logits"]
    # The codes of 8-bit tensors; a graph break that read another weight would be off by all of it.
    assert torch.linalg.norm(given - wanted) < 0.1 * torch.linalg.norm(wanted)


def test_what_no_way_takes_is_refused_when_deployed_with_the_way_around(tmp_path):
    batch = {"ids": torch.randint(0, 10, (2, 7))}
    prepared = detent.prepare(made(Deciding), (), example_kwargs=batch, backend="onnxruntime")
    detent.calibrate(prepared, [batch])
    with pytest.raises(DeployError, match=r"torch\.onnx\.export"):
        detent.deploy(prepared, tmp_path / "out")


@pytest.mark.pairwise(strength=1)
@pytest.mark.parametrize("backend", ["onnxruntime", "openvino"])
@every_net
def test_the_engine_computes_what_was_simulated(name, backend, tmp_path):
    pytest.importorskip(backend)
    build, inputs = NETS[name]
    model, batches = made(build), [NETS[name][1]() for _ in range(2)]
    prepared = detent.prepare(model, inputs(), backend=backend, recipe="lsq")
    detent.calibrate(prepared, batches)
    prepared.load_state_dict(model.state_dict())
    prepared.train()
    prepared(*batches[0]).square().mean().backward()
    scales = [parameter for path, parameter in prepared.named_parameters() if path.endswith("scale")]
    assert scales
    assert all(scale.grad is not None for scale in scales)
    artifact = detent.deploy(prepared.eval(), tmp_path / "out")
    verdict = artifact.verify([*batches, inputs(3)], latency=False)
    assert verdict.holds, str(verdict)

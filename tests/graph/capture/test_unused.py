"""Branches whose result nobody uses are not in the graph, unless they do something else than compute."""

from __future__ import annotations

import json

import torch
from torch import nn

import detent
from detent.graph import capture


class Dead(nn.Module):
    """`u` and the sum behind it are for nothing."""

    def __init__(self):
        super().__init__()
        self.a, self.b, self.u = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 4, 1), nn.Conv2d(8, 4, 1)
        self.register_buffer("seen", torch.zeros(1))

    def forward(self, x):
        y = self.a(x)
        self.u(y) + 1
        return self.b(torch.relu(y))


X = torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(0))


def names(model: nn.Module) -> list[str]:
    (graph,) = capture(model.eval(), (X,)).regions[""].graphs.values()
    return [node.name for node in graph.nodes if node.op not in ("placeholder", "output")]


def test_it_is_not_in_the_graph_and_its_parameters_stay():
    model = Dead()
    assert names(model) == ["a", "relu", "b"]
    assert "u.weight" in capture(model, (X,)).module.state_dict()


def test_it_neither_splits_what_is_fused_nor_is_named_in_a_file(tmp_path):
    torch.manual_seed(0)
    prepared = detent.prepare(Dead().eval(), (X,), backend="qnn")
    detent.calibrate(prepared, [(X,)])
    detent.deploy(prepared, tmp_path / "out")
    held = json.loads((tmp_path / "out" / "quantization_overrides_1.0.0.json").read_text())
    assert [entry["name"] for entry in held["activation_encodings"]] == ["x", "relu", "b"]
    assert [entry["name"] for entry in held["param_encodings"]] == ["a.weight", "b.weight"]


def test_a_module_with_a_hook_is_called():
    model, seen = Dead(), []
    model.u.register_forward_hook(lambda _module, _args, output: seen.append(output.shape))
    assert names(model) == ["a", "u", "relu", "b"]
    capture(model, (X,)).module(X)
    assert seen[-1] == (2, 4, 8, 8)


def test_what_changes_a_tensor_in_place_stays():
    class Counts(Dead):
        def forward(self, x):
            self.seen.add_(x.sum())
            return super().forward(x)

    captured = capture(Counts().eval(), (X,)).module
    before = captured.seen.clone()
    captured(X)
    assert captured.seen == before + X.sum()

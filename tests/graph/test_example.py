"""A prepared model takes other example inputs, and says when it is trained in float."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import detent
from detent.errors import NotQuantizedWarning

SMALL, LARGE = torch.zeros(2, 3, 8, 8), torch.randn(4, 3, 16, 16, generator=torch.Generator().manual_seed(0))


def prepared(backend: str = "openvino"):
    net = nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 2)
    )
    return detent.prepare(net, (SMALL,), backend=backend, recipe="lsq")


def test_sizes_are_those_of_the_new_example(tmp_path):
    model = prepared("academic")  # which keeps batch norms
    held = dict(model.named_parameters())
    statistics = {name: value.clone() for name, value in model.named_buffers()}
    model.take_example(LARGE)
    (graph,) = model.graphs.values()
    assert {node.name: node.meta["shape"] for node in graph.nodes if node.name == "_2"} == {"_2": (4, 4, 14, 14)}
    assert all(value is held[name] for name, value in model.named_parameters())
    same = {name: torch.equal(value, statistics[name]) for name, value in model.named_buffers() if "running" in name}
    assert list(same.values()) == [True, True], "it was run in eval mode"
    detent.calibrate(model, [LARGE])
    artifact = detent.deploy(model.eval(), tmp_path / "out")
    (port,) = artifact.graph.inputs.values()
    assert list(port.shape)[1:] == [3, 16, 16]


def test_parameters_are_the_same_objects_from_prepare_to_deploy(tmp_path):
    model = prepared()
    held = dict(model.named_parameters())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    detent.calibrate(model, [LARGE[:, :, :8, :8]])
    model.load_state_dict(model.state_dict())
    before = {name: value.detach().clone() for name, value in held.items()}
    model.train()(LARGE[:, :, :8, :8]).square().mean().backward()
    optimizer.step()
    detent.deploy(model.eval(), tmp_path / "out")
    found = dict(model.named_parameters())
    assert found.keys() == held.keys()
    assert all(found[name] is held[name] for name in held)
    moved = {name for name in held if not torch.equal(held[name], before[name])}
    assert {name for name in held if "scale" in name} <= moved


def test_training_while_it_is_calibrated_says_so_once():
    model = prepared().train()
    with detent.observing(model):
        model(LARGE)  # no word: nothing is trained
        with pytest.warns(NotQuantizedWarning, match="trained in float: it is being calibrated"):
            model(LARGE).sum().backward()
        model(LARGE).sum().backward()
    model(LARGE).sum().backward()

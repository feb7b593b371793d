"""Each cause of a difference is provoked, and named with what to do."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from torch import nn

import detent
from detent.cpus import CPUS, here
from detent.ir import can_saturate
from detent.recipes import Recipe
from detent.targets.arithmetics import ARITHMETICS
from detent.targets.engines import ENGINES
from detent.targets.onnxruntime.arithmetic.onnxruntime import OnnxRuntime
from detent.twin import Twin
from detent.verification.ranges import Ranges
from tests.verification.mutants import LAYER, LAYERS, NETS, batches, made, mutate_layer, off_by_one

openvino = pytest.mark.skipif(ENGINES["openvino"].version() is None, reason="pip install 'detent[openvino]'")


def taken_for(monkeypatch, arithmetic, cpu: str) -> None:
    monkeypatch.setattr(arithmetic, "local_cpu", classmethod(lambda _: CPUS[cpu]))


def test_nothing_differs_and_there_is_no_cause(tmp_path):
    verdict = made("onnxruntime", "plain", tmp_path / "out").verify(batches(), latency=False)
    assert verdict.holds
    assert verdict.causes == ()


def test_pairs_saturate_on_this_cpu(tmp_path, monkeypatch):
    """By the twin, which knows it: no engine is needed."""
    taken_for(monkeypatch, OnnxRuntime, "avx2")
    monkeypatch.setattr(ENGINES["onnxruntime"], "version", classmethod(lambda _: None))
    verdict = made("onnxruntime", "plain", tmp_path / "out", bits=8).verify(batches(), latency=False)
    (cause,) = verdict.causes
    assert cause.what.startswith("pairs of products saturate on this CPU (avx2): relu1 (")
    assert cause.why.startswith("it has no VNNI")
    assert cause.to_do.startswith("prepare the float model without naming a CPU")
    assert "; but products saturate on this CPU (avx2) in " in verdict.line
    assert f"cause: {cause.what}" in str(verdict)
    assert json.loads(json.dumps(verdict.to_dict()))["causes"][0]["to_do"] == cause.to_do


@pytest.mark.parametrize("bits", [8, 7])
def test_an_engine_that_saturates_and_a_twin_that_does_not(bits, tmp_path, monkeypatch):
    """Of an arithmetic that does not know it. Weights of 7 bits cannot saturate: then it is something else."""

    class Deaf(OnnxRuntime):
        def __init__(self, cpu=None):
            super().__init__("vnni")
            self.cpu = CPUS["avx2"]

    monkeypatch.setitem(ARITHMETICS._table, "onnxruntime", Deaf)
    artifact = made("onnxruntime", "plain", tmp_path / "out", bits=bits)
    assert can_saturate(artifact.graph, next(op for op in artifact.graph.ops if op.name == "conv2")) == (bits == 8)
    mutate_layer(monkeypatch, artifact, LAYERS["saturated"])
    verdict = artifact.verify(batches(), latency=False)
    assert not verdict.holds
    assert verdict.causes[0].what.startswith("pairs of products saturate" if bits == 8 else "not known: relu2 (")


def test_an_engine_that_computes_as_on_another_cpu(tmp_path, monkeypatch):
    """The twin takes this CPU for another."""
    other, real = ("vnni", "avx2") if here().saturates else ("avx2", "avx_vnni")
    taken_for(monkeypatch, OnnxRuntime, other)
    verdict = made("onnxruntime", "plain", tmp_path / "out", bits=8).verify(batches(), latency=False)
    assert not verdict.holds
    cause = verdict.causes[0]
    assert cause.what.startswith(f"onnxruntime {ENGINES['onnxruntime'].version()} computes as on another CPU ({real})")
    assert f"took this CPU for {other}" in cause.why


def test_a_cpu_that_the_arithmetic_does_not_know(tmp_path, monkeypatch):
    monkeypatch.setattr(OnnxRuntime, "cpus", tuple(name for name in CPUS if name != OnnxRuntime.local_cpu().name))
    artifact = made("onnxruntime", "plain", tmp_path / "out")
    mutate_layer(monkeypatch, artifact, off_by_one)
    verdict = artifact.verify(batches(), latency=False)
    assert verdict.causes[0].what.startswith(f"an unknown CPU ({OnnxRuntime.local_cpu().name}): relu2 (")
    assert f"knows {', '.join(OnnxRuntime.cpus)}" in verdict.causes[0].why


def test_an_arithmetic_that_is_the_same_on_every_cpu(tmp_path, monkeypatch):
    monkeypatch.setattr(OnnxRuntime, "cpus", ())
    artifact = made("onnxruntime", "plain", tmp_path / "out")
    mutate_layer(monkeypatch, artifact, off_by_one)
    assert artifact.verify(batches(), latency=False).causes[0].what.startswith("not known: relu2 (")


def test_an_operation_in_float(tmp_path, monkeypatch):
    artifact = made("onnxruntime", "float function", tmp_path / "out")
    mutate_layer(monkeypatch, artifact, off_by_one, layer="between")
    verdict = artifact.verify(batches(), latency=False)
    assert not verdict.holds
    assert verdict.causes[0].what.startswith("an operation in float: between (")


@openvino
def test_a_relu_behind_an_operation_in_float(tmp_path, monkeypatch):
    """The ReLU rounds nothing; the convolution before it, whose weights are not quantized, does."""
    monkeypatch.setitem(NETS, "float layer", (False, ("conv3",)))
    artifact = made("openvino", "float layer", tmp_path / "out")
    mutate_layer(monkeypatch, artifact, off_by_one, layer="between")
    verdict = artifact.verify(batches(), latency=False)
    assert not verdict.holds
    assert verdict.causes[0].what.startswith("an operation in float: between (")


@pytest.mark.parametrize("tensors", [True, False])
@openvino
def test_ties(tensors, tmp_path, monkeypatch):
    """Codes that float32 arithmetic leaves open go the other way: within the claim, and explained."""
    artifact = made("openvino", "plain", tmp_path / "out")
    twin = Twin(artifact.graph, ARITHMETICS["openvino"]())

    def other_way(_graph, shown, grid, layer):
        least, greatest = Ranges(twin, {"x": batches()[1].numpy()}, shown).codes(layer, grid)
        moved = np.where(shown[layer] == least, greatest, least)
        return moved.reshape(shown[layer].shape).astype(shown[layer].dtype)

    mutate_layer(monkeypatch, artifact, other_way)
    verdict = artifact.verify(batches(), latency=False, tensors=tensors)
    assert verdict.holds, verdict.problems
    (cause,) = verdict.causes
    assert cause.what.startswith("ties: relu2 (")
    assert cause.to_do.startswith("nothing: ")
    assert "within the guarantee" in verdict.line


@openvino
@pytest.mark.skipif(not str(ENGINES["openvino"].version()).startswith("2026.4"), reason="seen with OpenVINO 2026.4")
def test_a_known_defect_is_named_with_the_version(tmp_path, monkeypatch):
    """A layer that gives next to nothing has a grid of next to nothing."""
    torch.manual_seed(0)
    net = nn.Sequential()
    for name, module in (
        ("conv1", nn.Conv2d(4, 8, 3, bias=False)),
        ("relu2", nn.ReLU()),
        ("conv3", nn.Conv2d(8, 4, 1)),
    ):
        net.add_module(name, module)
    net.conv1.weight.data *= 1e-8
    recipe = Recipe(name="narrow", weight={"bits": 7})
    prepared = detent.prepare(net.eval(), (batches()[0],), backend="openvino", recipe=recipe)
    detent.calibrate(prepared, batches())
    artifact = detent.deploy(prepared, tmp_path / "out")
    mutate_layer(monkeypatch, artifact, off_by_one)
    verdict = artifact.verify(batches(), latency=False)
    assert verdict.causes[0].what.startswith(f"a known defect of openvino {ENGINES['openvino'].version()}: {LAYER} (")
    assert "below 1e-6" in verdict.causes[0].why


class Sum(nn.Module):
    def __init__(self, *, groups: int, constant: bool):
        super().__init__()
        self.first, self.conv = nn.Conv2d(4, 8, 1), nn.Conv2d(8, 8, 3, padding=1, groups=groups)
        self.factor = nn.Parameter(torch.randn(1, 8, 1, 1)) if constant else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.first(x))
        x = self.conv(x) + x
        return x if self.factor is None else x * self.factor


@pytest.mark.parametrize(
    ("groups", "constant", "known"), [(2, True, True), (1, True, False), (2, False, False)], ids=str
)
def test_where_openvino_is_known_to_be_wrong(groups, constant, known, tmp_path):
    """Constants for channels behind a convolution in groups and a sum."""
    net = Sum(groups=groups, constant=constant).eval()
    graph = detent.quantize(net, batches(), backend="onnxruntime", folder=tmp_path / "out").graph
    assert any(defect.at(graph, op) for defect in ENGINES["openvino"].known_defects for op in graph.ops) == known

"""Widths by what an engine takes: real milliseconds, a budget that is kept, a recipe that is deployed and runs."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

import detent.precision
from detent.errors import EngineError, SchemeError
from detent.precision import faster_in_float, layer_latency, search_precision
from detent.recipes import Recipe
from detent.targets import BACKENDS
from detent.targets.engines import ENGINES
from tests.algorithms.nets import Convs, images, ready

LAYERS = ["stem", "expand", "depthwise", "project", "fc"]


@pytest.mark.by_default("onnxruntime")
@pytest.mark.parametrize("backend", ["onnxruntime", "openvino"])
def test_every_layer_is_timed_on_the_engine_at_each_width(backend):
    if ENGINES[BACKENDS[backend].engine].version() is None:
        pytest.skip(f"{backend} is not installed")
    found = layer_latency(ready(Convs(), images(2), backend=backend), repeats=3)
    assert list(found) == LAYERS
    for row in found.values():
        assert list(row) == [8, 32]
        assert all(milliseconds > 0 for milliseconds in row.values())


def test_the_fastest_run_counts_in_milliseconds():
    # Three turns of both widths warm up, and only their beginnings are read; then two turns that count.
    lengths = [0.003, 0.5, 0.002, 0.25]
    readings = iter([*[0.0] * 6, *(reading for length in lengths for reading in (0.0, length))])
    net = torch.nn.Sequential(torch.nn.Linear(4, 3))
    prepared = ready(net, [torch.randn(8, 4)], backend="onnxruntime")
    assert layer_latency(prepared, repeats=2, clock=lambda: next(readings)) == {"0": {8: 2.0, 32: 250.0}}


def test_a_budget_in_milliseconds_leaves_float_what_it_can_pay_for(monkeypatch, tmp_path):
    """Prices that are known, so that the answer is: integers take 1 ms, floats 3 ms, and there are 7 ms for five."""
    net, data = Convs(), images(3)
    prepared = ready(net, data, backend="onnxruntime")
    monkeypatch.setattr(detent.precision, "layer_latency", lambda *_, **__: {n: {8: 1.0, 32: 3.0} for n in LAYERS})
    choice = search_precision(prepared, data[:1], 7.5)
    assert choice.price == 7.0
    floats = [name for name, bits in choice.bits.items() if bits == 32]
    assert len(floats) == 1

    recipe = Recipe.from_dict({"name": "mixed", "rules": choice.rules})
    mixed = detent.prepare(net, (data[0],), backend="onnxruntime", recipe=recipe)
    detent.calibrate(mixed, data)
    quantized = {entry.tensor.rsplit(".", 1)[0] for entry in mixed.plan.quantized if entry.role == "weight"}
    assert quantized == set(LAYERS) - set(floats)
    artifact = detent.deploy(mixed, tmp_path / "out")
    assert artifact.verify(data[:1]).holds


def test_other_budgets_need_no_engine():
    prepared = ready(Convs(), images(2), backend="tensorrt")
    choice = search_precision(prepared, images(1), 2000, of="size")
    assert choice.price <= 2000
    with pytest.raises(EngineError, match="no engine runs that backend here"):
        search_precision(prepared, images(1), 5.0)


def test_an_engine_that_is_missing_names_what_to_install(monkeypatch):
    prepared = ready(Convs(), images(2), backend="onnxruntime")
    prepared.backend = replace(prepared.backend, engine="openvino")
    monkeypatch.setattr(ENGINES["openvino"], "version", classmethod(lambda _: None))
    with pytest.raises(EngineError, match=r"detent\[openvino\]"):
        layer_latency(prepared)


def test_nothing_measured_is_refused():
    prepared = ready(torch.nn.Sequential(torch.nn.Linear(4, 3)), [torch.randn(8, 4)], backend="onnxruntime")
    with pytest.raises(EngineError, match="nothing would be measured"):
        layer_latency(prepared, repeats=0)


def test_equal_layers_are_timed_once(monkeypatch):
    made = []
    build = detent.precision._deployed
    monkeypatch.setattr(detent.precision, "_deployed", lambda *given: made.append(given) or build(*given))
    net = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 4), torch.nn.Linear(4, 3))
    found = layer_latency(ready(net, [torch.randn(8, 4)], backend="onnxruntime"), repeats=2)
    assert len(made) == 2 * 2
    assert found["0"] == found["1"] != found["2"]


def test_what_is_faster_in_float(monkeypatch):
    prices = {"stem": {8: 2.0, 32: 1.0}, "fc": {8: 1.0, 32: 2.0}, "expand": {8: 1.0, 32: 1.0}}
    every = {**{name: {8: 1.0, 32: 3.0} for name in LAYERS}, **prices}
    monkeypatch.setattr(detent.precision, "layer_latency", lambda *_, **__: every)
    assert faster_in_float(ready(Convs(), images(2), backend="onnxruntime")) == {"stem": (2.0, 1.0)}


def speed_of(monkeypatch, tmp_path, network_times):
    """Prices that are known: two layers are faster in float, and the network takes `network_times`."""
    monkeypatch.setattr(detent.precision, "faster_in_float", lambda _: {"stem": (2.0, 1.0), "fc": (0.5, 0.25)})
    seen = []
    monkeypatch.setattr(detent.precision, "time_artifacts", lambda both, _: seen.extend(both) or network_times)
    artifact = detent.quantize(Convs(), images(2), backend="onnxruntime", folder=tmp_path / "out", prefer="speed")
    quantized = {entry.tensor.rsplit(".", 1)[0] for entry in artifact.prepared.plan.quantized if entry.role == "weight"}
    assert len(seen) == 2
    return quantized, artifact.manifest["notes"]


def test_layers_stay_float_for_speed(monkeypatch, tmp_path):
    quantized, notes = speed_of(monkeypatch, tmp_path, [3.0, 2.0])
    assert quantized == set(LAYERS) - {"stem", "fc"}
    assert (
        "float for speed, each timed alone: stem (1.00 ms for 2.00), fc (0.25 ms for 0.50). "
        "The network takes 2.00 ms in place of 3.00 ms on this CPU, one thread"
    ) in notes


def test_they_do_not_where_the_network_is_no_faster(monkeypatch, tmp_path):
    quantized, notes = speed_of(monkeypatch, tmp_path, [3.0, 3.5])
    assert quantized == set(LAYERS)
    assert (
        "all layers are quantized: with 2 of them in float the network took "
        "3.50 ms in place of 3.00 ms on this CPU, one thread"
    ) in notes


def test_speed_on_the_real_engine(tmp_path):
    artifact = detent.quantize(Convs(), iter(images(2)), backend="onnxruntime", folder=tmp_path / "out", prefer="speed")
    said = [note for note in artifact.manifest["notes"] if "on this CPU" in note]
    assert len(said) == 1
    assert artifact.verify(images(1)).holds
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_another_preference_is_refused(tmp_path):
    with pytest.raises(SchemeError, match="prefer='size'"):
        detent.quantize(Convs(), images(2), backend="onnxruntime", folder=tmp_path / "out", prefer="size")

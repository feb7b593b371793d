"""The demo's network, and one row of its table end to end."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from importlib.resources import files

import pytest
import torch

import detent.demo
from detent.cli import demo
from detent.demo import JOBS, Job, Row, images, run, trained
from detent.errors import install_hint
from detent.targets.engines import ENGINES


def test_the_network_is_trained():
    net, data = trained(), images()
    with torch.no_grad():
        right = (net(data.test).argmax(1) == data.test_labels).float().mean()
    assert sum(parameter.numel() for parameter in net.parameters()) < 120_000
    assert len(data.test) == 1000
    assert len(data.calibration) == 256
    assert right > 0.915


def test_what_ships_is_small():
    sizes = [(files("detent.demo") / name).stat().st_size for name in ("weights.safetensors", "images.npz")]
    assert sum(sizes) < 2_000_000


def test_the_jobs_cover_engines_and_both_ways_of_quantizing():
    assert {"onnxruntime", "openvino", "litert", "ncnn", "torch_x86", "tensorrt", "vitis"} <= {j.backend for j in JOBS}
    assert any(job.steps for job in JOBS)
    assert any(not job.steps for job in JOBS)


@pytest.mark.by_default("ptq")
@pytest.mark.parametrize("job", [Job("onnxruntime"), Job("academic", "lsq", bits=4, steps=2)], ids=["ptq", "trained"])
def test_a_row_end_to_end(tmp_path, job):
    net, data = trained(), images()
    few = data._replace(calibration=data.calibration[:64], test=data.test[:250], test_labels=data.test_labels[:250])
    row = run(job, net, few, tmp_path / "out")
    assert row.accuracy_simulated is not None
    assert abs(row.accuracy_simulated - row.accuracy_twin) < 1
    if job.backend == "onnxruntime":
        assert row.exact == "yes"
        assert row.accuracy_engine == row.accuracy_twin
        assert row.accuracy_float - row.accuracy_twin < 1
        assert row.size_kb < 120
        assert row.latency_ratio is not None
    else:
        assert row.bits == "W4/8 A4/8"
    assert json.loads(json.dumps(row.to_dict()))["backend"] == job.backend


@pytest.mark.parametrize(("backend", "said"), [("mnn", "not installed"), ("tensorrt", "no engine")])
def test_a_row_without_an_engine_says_why(tmp_path, monkeypatch, backend, said):
    monkeypatch.setattr(ENGINES["mnn"], "version", lambda: None)
    net, data = trained(), images()
    few = data._replace(calibration=data.calibration[:64], test=data.test[:8], test_labels=data.test_labels[:8])
    row = run(Job(backend), net, few, tmp_path / "out")
    assert (row.accuracy_engine, row.exact) == (None, said)


def test_help_shows_an_example():
    command = [sys.executable, "-m", "detent.cli", "demo", "--help"]
    answer = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert answer.returncode == 0
    assert "detent demo --out artifacts" in answer.stdout


def test_a_target_whose_package_is_missing_is_left_out_and_named(monkeypatch, capsys):
    asked = (Job("openvino"), Job("academic"))
    row = Row("academic", "ptq", "W8 A8", 93.5, 93.0, 93.0, None, 90.0, None, "no engine", "")
    monkeypatch.setattr(detent.demo, "JOBS", asked)
    monkeypatch.setattr(detent.demo, "run", lambda job, *_: replace(row, backend=job.backend))
    monkeypatch.setitem(sys.modules, "openvino", None)
    demo(json=True)
    said = capsys.readouterr()
    assert [one["backend"] for one in json.loads(said.out)] == ["academic"]
    expected = f"left out: openvino, because openvino is not installed: {install_hint('openvino')}"
    assert expected in said.err.splitlines()

"""MQBench's zoo, from one table: every config is read, and prepares its network."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from detent.bench import experiments, write_zoo
from detent.calibrating import calibrate
from detent.compat.mqbench import solver
from detent.preparing import prepare
from detent.training.batch import call
from detent.training.build import float_model, prepared_model, samples_of
from detent.training.config_files import load_config
from detent.training.import_paths import import_object, is_import_path

EXPERIMENTS = {experiment.folder: experiment.config for experiment in experiments()}
WRITTEN = {experiment.folder: experiment.text() for experiment in experiments()}
NARROW = [
    "model.options={classes: 4, width: 0.125}",
    "data={name: made_up, folder: null, batch_size: 2, workers: 0, options: {count: 2, size: 32, classes: 4}}",
]
SMALL = [
    "data={name: made_up, folder: null, batch_size: 4, workers: 0, train_batches: 1, val_batches: 1, "
    "calibration_batches: 1, options: {count: 8, size: 32}}",
    "model={name: resnet18, options: {classes: 10, width: 0.125}, pretrained: null}",
    "train.epochs=1", "deploy.verify_batches=1", "log.to=[]",
]  # fmt: skip


class Residual(nn.Module):
    """Convolutions with norms, an addition, a mean, a linear layer: what the networks of the zoo are made of."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Conv2d(3, 4, 3, padding=1, bias=False), nn.Conv2d(4, 4, 3, padding=1, bias=False)
        self.norms, self.fc = nn.ModuleList([nn.BatchNorm2d(4), nn.BatchNorm2d(4)]), nn.Linear(4, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.norms[0](self.one(x)))
        return self.fc(torch.relu(self.norms[1](self.two(x)) + x).mean((2, 3)))


def test_all_of_the_benchmark_are_there():
    families = [folder.partition("_experiments/")[0] for folder in EXPERIMENTS]
    counts = {name: families.count(name) for name in dict.fromkeys(families)}
    assert counts == {"lsq": 30, "dsq": 30, "pact": 30, "dorefa": 30, "qil": 30, "bnfold": 30, "initialization": 12}


@pytest.mark.parametrize(
    ("folder", "network", "quantizers", "backend"),
    [
        ("lsq_experiments/resnet18_4bit_academic", "resnet18", ("lsq", "lsq"), "academic"),
        ("pact_experiments/mobilenetv2_4bit_academic", "mobilenet_v2", ("dorefa", "pact"), "academic"),
        ("dsq_experiments/resnet50_4bit_trt", "resnet50", ("dsq", "dsq"), "detent.compat.mqbench.hardware:GRAPH_2"),
        ("qil_experiments/effnet_4bit_tvm", "efficientnet_lite0", ("qil", "qil"),
         "detent.compat.mqbench.hardware:GRAPH_3"),
    ],
)  # fmt: skip
def test_a_config_says_what_its_folder_does(folder, network, quantizers, backend):
    """In MQBench's own zoo every mobilenetv2_4bit_academic is LSQ, and every resnet50_4bit_trt a ResNet-18."""
    config = EXPERIMENTS[folder]
    assert (config.model.name, config.backend) == (network, backend)
    assert (config.recipe.weight.quantizer, config.recipe.activation.quantizer) == quantizers
    assert (config.recipe.weight.bits, config.train.epochs, config.loss.label_smoothing) == (4, 100, 0.1)


@pytest.mark.few(20)
@pytest.mark.parametrize("folder", EXPERIMENTS)
def test_every_recipe_prepares(folder):
    config = EXPERIMENTS[folder]
    backend = config.backend
    if is_import_path(backend):
        backend = import_object(backend, "backend", allowed=True)
    prepared = prepare(Residual(), (torch.randn(2, 3, 8, 8),), backend=backend, recipe=config.recipe)
    bits = {entry.scheme.grid.bits for entry in prepared.plan.quantized if entry.role == "weight"}
    assert bits <= {config.recipe.weight.bits, 8}


@pytest.mark.few(5)
@pytest.mark.parametrize("folder", EXPERIMENTS)
def test_every_config_steps(folder, tmp_path):
    """The file itself, read; its network with an eighth of the channels, on two images of 32 pixels."""
    (tmp_path / "config.yaml").write_text(WRITTEN[folder])
    config = load_config(tmp_path / "config.yaml", overrides=NARROW)
    config = config.replace(model=config.model.replace(pretrained=None))
    samples = samples_of(config, "train")
    prepared = prepared_model(config, float_model(config), samples)
    images = torch.stack([samples[0][0], samples[1][0]])
    calibrate(prepared, [images])
    before = [parameter.detach().clone() for parameter in prepared.parameters()]
    optimizer = torch.optim.SGD(prepared.parameters(), lr=1e-3)
    call(prepared.train(), (images, torch.tensor([0, 1]))).square().mean().backward()
    optimizer.step()
    assert any(not torch.equal(a, b) for a, b in zip(before, prepared.parameters(), strict=True))
    assert all(parameter.isfinite().all() for parameter in prepared.parameters())


def test_the_commands_of_the_document(tmp_path, monkeypatch, capsys):
    """cd qbench_zoo/lsq_experiments/resnet18_4bit_academic; sh run.sh: what it runs is `detent train config.yaml`."""
    written = write_zoo(tmp_path / "qbench_zoo")
    assert len(written) == 192
    folder = tmp_path / "qbench_zoo" / "lsq_experiments" / "resnet18_4bit_academic"
    assert "python -u -m detent train config.yaml" in (folder / "run.sh").read_text()
    assert subprocess.run(["sh", "-n", str(folder / "run.sh")], timeout=60).returncode == 0
    monkeypatch.chdir(folder)
    assert solver.main(["--config", "config.yaml"]) == 2
    assert "imagenet" in capsys.readouterr().err


@pytest.mark.full
def test_the_script_of_the_document_trains(tmp_path, monkeypatch):
    """`sh run.sh`, as it is written, with other data and fewer channels."""
    write_zoo(tmp_path / "qbench_zoo")
    folder = tmp_path / "qbench_zoo" / "lsq_experiments" / "resnet18_4bit_academic"
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
    ended = subprocess.run(["sh", "run.sh", *SMALL], cwd=folder, capture_output=True, text=True, timeout=300)
    assert ended.returncode == 0, ended.stderr
    assert "top-1" in ended.stdout
    assert list(folder.glob("runs/**/manifest.json"))


@pytest.mark.slow
@pytest.mark.by_default("trt")
@pytest.mark.parametrize("hardware", ["academic", "trt"])
def test_a_config_is_trained_by_itself(hardware, tmp_path):
    from detent.training.session import train

    write_zoo(tmp_path / "qbench_zoo")
    where = tmp_path / "qbench_zoo" / "lsq_experiments" / f"resnet18_4bit_{hardware}" / "config.yaml"
    outcome = train(load_config(where, overrides=SMALL), tmp_path / "run")
    assert outcome is not None
    assert outcome.verdict is not None
    assert outcome.verdict.holds
    assert outcome.artifact.manifest["recipe"]["weight"]["bits"] == 4

"""One row of the demo's table: a backend and a recipe, from the float network to the verdict."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from detent.artifact import deploy
from detent.calibrating import calibrate
from detent.demo.data import Images
from detent.demo.network import DemoNet
from detent.graph import PreparedModel
from detent.preparing import prepare
from detent.recipes import Recipe, find
from detent.targets.formats import size_to_load
from detent.training import parameter_groups

__all__ = ["JOBS", "Job", "Row", "run"]


@dataclasses.dataclass(frozen=True)
class Job:
    """One row to compute: `steps` of training for quantization-aware training; `bits` other than the backend's 8."""

    backend: str
    recipe: str = "ptq"
    bits: int | None = None
    steps: int = 0


JOBS = (
    Job("onnxruntime"),
    Job("onnxruntime", "lsq", steps=60),
    Job("openvino"),
    Job("litert"),
    Job("ncnn"),
    Job("torch_x86"),
    Job("tensorrt"),
    Job("vitis"),
    Job("academic", bits=4),
    Job("academic", "lsq", bits=4, steps=60),
)


@dataclasses.dataclass(frozen=True)
class Row:
    """The result of a job; accuracies in percent, None if there is nothing to run."""

    backend: str
    algorithm: str
    bits: str
    accuracy_float: float
    accuracy_simulated: float | None
    accuracy_twin: float
    accuracy_engine: float | None
    size_kb: float
    latency_ratio: float | None
    exact: str
    verdict: str

    def to_dict(self) -> dict[str, Any]:
        return dataclasses.asdict(self)


def run(job: Job, net: DemoNet, images: Images, folder: Path) -> Row:
    """Prepare, calibrate, perhaps train, deploy, verify."""
    prepared = prepare(net, (images.calibration[:1],), backend=job.backend, recipe=_recipe(job))
    calibrate(prepared, _batches(images.calibration, 64))
    if job.steps:
        _train(prepared, net, images.calibration, job.steps)
    prepared.eval()
    artifact = deploy(prepared, folder)
    batches = zip(_batches(images.test, 250), _batches(images.test_labels, 250), strict=True)
    verdict = artifact.verify(batches, tensors=False)
    found = verdict.accuracy
    assert found is not None
    engine = [difference for difference in verdict.outputs if difference.what == "twin vs engine"]
    with torch.no_grad():
        right = (net(images.test).argmax(1) == images.test_labels).float()
    return Row(
        backend=job.backend,
        algorithm=job.recipe + (", trained" if job.steps else ""),
        bits=_bits(prepared),
        accuracy_float=100 * float(right.mean()),
        accuracy_simulated=found.simulation,
        accuracy_twin=found.twin,
        accuracy_engine=found.engine,
        size_kb=size_to_load(artifact) / 1024,
        latency_ratio=verdict.speed.ratio if verdict.speed else None,
        exact=_exactness(engine, prepared.backend.engine),
        verdict=verdict.line,
    )


def _batches(samples: Tensor, size: int) -> list[Tensor]:
    return [samples[start : start + size] for start in range(0, len(samples), size)]


def _recipe(job: Job) -> Recipe:
    recipe = find(job.recipe)
    if job.bits is None:
        return recipe
    weight, activation = recipe.weight.replace(bits=job.bits), recipe.activation.replace(bits=job.bits)
    return recipe.replace(weight=weight, activation=activation)


def _train(prepared: PreparedModel, net: DemoNet, images: Tensor, steps: int) -> None:
    """The float network is the teacher: no labels are needed."""
    torch.manual_seed(0)
    optimizer = torch.optim.Adam(parameter_groups(prepared, lr=1e-4, scale_lr=1e-3))
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    prepared.train()
    for _ in range(steps):
        batch = images[torch.randperm(len(images))[:64]]
        batch = torch.where(torch.rand(len(batch), 1, 1, 1) < 0.5, batch.flip(3), batch)
        with torch.no_grad():
            taught = F.log_softmax(net(batch), 1)
        loss = F.kl_div(F.log_softmax(prepared(batch), 1), taught, reduction="batchmean", log_target=True)
        optimizer.zero_grad()
        torch.autograd.backward(loss)
        optimizer.step()
        schedule.step()


def _bits(prepared: PreparedModel) -> str:
    widths = {role: set[int]() for role in ("weight", "activation")}
    for entry in prepared.plan.quantized:
        if entry.role in widths:
            widths[entry.role].add(entry.scheme.grid.bits)
    return " ".join(f"{role[0].upper()}{'/'.join(map(str, sorted(found)))}" for role, found in widths.items() if found)


def _exactness(engine: list[Any], name: str | None) -> str:
    if not engine:
        return "no engine" if name is None else "not installed"
    differing = sum(difference.differing for difference in engine)
    if differing == 0:
        return "yes"
    worst = max(engine, key=lambda difference: difference.most)
    return f"no: {differing} of {sum(d.elements for d in engine):,}, at most {worst.most:.1g} {worst.unit}"

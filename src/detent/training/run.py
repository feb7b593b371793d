"""The state of a run: the model, the optimizer, the data, and the progress."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from detent.errors import ArtifactError, refusing
from detent.graph import PreparedModel
from detent.training import checkpoint
from detent.training.batch import call, size_of, to_float32
from detent.training.batches import Batches
from detent.training.ema import Ema
from detent.training.failures import broken_parameters, stopped
from detent.training.log import Log
from detent.training.metrics import Metric, top1
from detent.training.objective import LossFunction, Objective, checked_loss
from detent.training.precision import Precision
from detent.training.processes import Processes, refuse_sharded
from detent.training.random_state import random_state, seed_everything, set_random_state
from detent.training.schedules import Schedule
from detent.training.validation import validate

__all__ = ["Progress", "Run"]

LAST, BEST = "last.safetensors", "best.safetensors"


@dataclass
class Progress:
    """How far training is: whole epochs, total steps, batches of the current epoch.

    `log_rows` are the rows of the log when the checkpoint that says this was written; None in one of earlier versions.
    """

    epoch: int = 0
    step: int = 0
    batch: int = 0
    best: float | None = None
    loss_sum: float = 0.0
    right: float = 0.0
    seen: float = 0.0
    log_rows: int | None = None

    def check(self) -> None:
        """Refuse values that no run can reach, which mean that the file is damaged."""
        counts = (self.epoch, self.step, self.batch, self.log_rows or 0)
        sums = (self.loss_sum, self.right, self.seen, self.best or 0.0)
        if not all(type(count) is int and count >= 0 for count in counts):
            raise ValueError(f"progress has counts that are none: {counts}")
        if not all(isinstance(value, (int, float)) for value in sums):
            raise ValueError(f"progress has sums that are no numbers: {sums}")


@dataclass(eq=False)
class Run:
    """Everything a loop changes; `save` and `resume` keep all of it.

    `calibration` are the batches ranges are measured on. `folder` gets `last.safetensors`, `best.safetensors` and the
    log. With `checkpoint_interval` a checkpoint is written every that many steps, in addition to the one at the end of
    each epoch. `objective` is any function of (outputs, batch); the default is the loss that the model computed itself,
    or else that of a classifier. `metrics` are functions of the same arguments, by name.
    """

    prepared: PreparedModel
    optimizer: torch.optim.Optimizer
    train: Batches
    val: Batches
    calibration: Batches
    objective: LossFunction = field(default_factory=Objective)
    metrics: Mapping[str, Metric] = field(default_factory=dict)
    schedule: Schedule = Schedule()
    ema: Ema | None = None
    folder: Path | None = None
    checkpoint_interval: int | None = None
    processes: Processes = Processes()
    precision: Precision = field(default_factory=Precision)
    log: Log = field(default_factory=lambda: Log(None))
    seed: int = 0
    progress: Progress = field(default_factory=Progress)

    def __post_init__(self) -> None:
        if self.processes.count > 1:
            refuse_sharded(self.prepared)

    @property
    def last(self) -> Path | None:
        """The newest checkpoint, if there is one."""
        path = None if self.folder is None else self.folder / LAST
        return path if path is not None and path.is_file() else None

    def step(self, model: nn.Module, batch: Any) -> float:
        """One training step of `model`, which is the prepared model or its parallel wrapper; returns the mean loss."""
        self.schedule.apply(self.optimizer, self.progress.step)
        outputs, loss = self.loss(model, batch)
        mean = self.processes.total(loss.detach()) / self.processes.count
        value = float(mean)
        if not bool(torch.isfinite(mean)):
            raise stopped(self.prepared, batch, value, self.progress.step, self.last)
        self.precision.step(loss, self.optimizer)
        if self.ema is not None:
            self.ema.update()
        self._count(outputs, batch, value)
        return value

    def loss(self, model: nn.Module, batch: Any) -> tuple[Any, Tensor]:
        """The outputs of `model` for a batch, and their loss, with gradients."""
        with self.precision.forward(self.prepared):
            outputs = call(model, batch)
        outputs = to_float32(outputs)
        return outputs, checked_loss(self.objective(outputs, batch))

    def validate(self) -> dict[str, float]:
        """The metrics of the quantized model and of the float model with the same weights."""
        # Smoothed labels and a teacher are ways to train, not what a model is judged by.
        objective = Objective() if isinstance(self.objective, Objective) else self.objective
        return validate(self.prepared, self.val, self.processes, objective=objective, metrics=self.metrics)

    def _count(self, outputs: Any, batch: Any, loss: float) -> None:
        progress, share = self.progress, top1(outputs, batch)
        if share is not None:
            size = float(size_of(batch))
            right, seen = self.processes.total(torch.stack([share * size, torch.full_like(share, size)])).tolist()
            progress.right += right
            progress.seen += seen
        progress.loss_sum += loss
        progress.step += 1
        progress.batch += 1

    def save(self, name: str = LAST) -> None:
        """Write a checkpoint; refused if a parameter is not finite, so that the last one on disk is good."""
        if self.folder is None or not self.processes.first:
            return
        if broken_parameters(self.prepared):
            raise stopped(self.prepared, None, float("nan"), self.progress.step, self.last)
        training: dict[str, Any] = {
            "progress": {**asdict(self.progress), "log_rows": self.log.rows},
            "optimizer": self.optimizer.state_dict(),
            "random": random_state(),
            "precision": self.precision.state_dict(),
        }
        if self.ema is not None:
            training |= {"ema": self.ema.state_dict(), "ema updates": self.ema.updates}
        checkpoint.save(self.folder / name, self.prepared, training=training)

    def resume(self, path: str | Path) -> None:
        """Continue where a checkpoint was written, bit for bit on one process."""
        state = checkpoint.load(path, self.prepared)
        with refusing(ArtifactError, f"resume from {path}", "use an older checkpoint, or train anew"):
            self._take(state)

    def _take(self, state: Mapping[str, Any]) -> None:
        progress = Progress(**state["progress"])
        progress.check()
        if "precision" in state:
            self.precision.load_state_dict(state["precision"])
        self.optimizer.load_state_dict(state["optimizer"])
        _check_optimizer(self.optimizer)
        self.progress = progress
        if self.ema is not None and "ema" in state:
            self.ema.load_state_dict(state["ema"], state["ema updates"])
        if self.processes.first:
            set_random_state(state["random"])
        else:
            seed_everything(self.seed + self.progress.step + self.processes.rank)


def _check_optimizer(optimizer: torch.optim.Optimizer) -> None:
    """Torch accepts a state of any shape and fails at the first step."""
    for parameter, held in optimizer.state.items():
        for name, value in held.items():
            if isinstance(value, Tensor) and value.ndim and value.shape != parameter.shape:
                raise ValueError(f"{name} is {list(value.shape)} for a parameter of {list(parameter.shape)}")

"""What a loop works on: the model, what trains it, the data, and how far it has come."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from detent.training import checkpoint
from detent.training.batches import Batches
from detent.training.ema import Ema
from detent.training.failures import broken_parameters, stopped
from detent.training.log import Log
from detent.training.objective import Objective
from detent.training.processes import Processes
from detent.training.random_state import random_state, seed_everything, set_random_state
from detent.training.schedules import Schedule

__all__ = ["Progress", "Run"]

LAST, BEST = "last.safetensors", "best.safetensors"


@dataclass
class Progress:
    """How far training has come: whole epochs, steps in all, batches of the epoch that is under way."""

    epoch: int = 0
    step: int = 0
    batch: int = 0
    best: float = -1.0
    loss_sum: float = 0.0
    right: float = 0.0
    seen: float = 0.0


@dataclass(eq=False)
class Run:
    """Everything a loop moves; `save` and `resume` keep all of it.

    `calibration` are the batches ranges are measured on. `folder` gets `last.safetensors`, `best.safetensors` and the
    log. With `checkpoint_interval` a checkpoint is written every so many steps, besides one at the end of each epoch.
    """

    prepared: Any
    optimizer: torch.optim.Optimizer
    train: Batches
    val: Batches
    calibration: Batches
    objective: Objective = field(default_factory=Objective)
    schedule: Schedule = Schedule()
    ema: Ema | None = None
    folder: Path | None = None
    checkpoint_interval: int | None = None
    processes: Processes = Processes()
    log: Log = field(default_factory=lambda: Log(None))
    seed: int = 0
    progress: Progress = field(default_factory=Progress)

    @property
    def last(self) -> Path | None:
        """The newest checkpoint, if there is one."""
        path = None if self.folder is None else self.folder / LAST
        return path if path is not None and path.is_file() else None

    def step(self, model: Any, inputs: Tensor, labels: Tensor) -> float:
        """One step of `model`, which is the prepared one or stands for it on several processes; the mean loss."""
        self.schedule.apply(self.optimizer, self.progress.step)
        outputs = model(inputs)
        loss = self.objective(outputs, labels, (inputs,))
        mean = self.processes.total(loss.detach()) / self.processes.count
        value = float(mean)
        if not bool(torch.isfinite(mean)):
            raise stopped(self.prepared, (inputs,), value, self.progress.step, self.last)
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        self.optimizer.step()
        if self.ema is not None:
            self.ema.update()
        self._count(outputs, labels, value)
        return value

    def _count(self, outputs: Tensor, labels: Tensor, loss: float) -> None:
        right = (outputs.detach().argmax(1) == labels).sum().float()
        counts = self.processes.total(torch.stack([right, right.new_tensor(float(len(labels)))]))
        progress = self.progress
        progress.right += float(counts[0])
        progress.seen += float(counts[1])
        progress.loss_sum += loss
        progress.step += 1
        progress.batch += 1

    def save(self, name: str = LAST) -> None:
        """Write a checkpoint; refused where a parameter is no number, so that the last one on disk is a good one."""
        if self.folder is None or not self.processes.first:
            return
        if broken_parameters(self.prepared):
            raise stopped(self.prepared, (), float("nan"), self.progress.step, self.last)
        training: dict[str, Any] = {
            "progress": asdict(self.progress),
            "optimizer": self.optimizer.state_dict(),
            "random": random_state(),
        }
        if self.ema is not None:
            training |= {"ema": self.ema.state_dict(), "ema updates": self.ema.updates}
        checkpoint.save(self.folder / name, self.prepared, training=training)

    def resume(self, path: str | Path) -> None:
        """Continue where a checkpoint was written, bit for bit on one process."""
        state = checkpoint.load(path, self.prepared)
        self.optimizer.load_state_dict(state["optimizer"])
        self.progress = Progress(**state["progress"])
        if self.ema is not None and "ema" in state:
            self.ema.load_state_dict(state["ema"], state["ema updates"])
        if self.processes.first:
            set_random_state(state["random"])
        else:
            seed_everything(self.seed + self.progress.step + self.processes.rank)

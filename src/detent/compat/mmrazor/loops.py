"""MMRazor's loops, with its arguments, over Detent's."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, RandomSampler

from detent import training
from detent.compat.mmrazor.architecture import MMArchitectureQuant
from detent.compat.mmrazor.own_loss import OwnLossRun
from detent.compat.mmrazor.registry import LOOPS, MODELS
from detent.compat.mmrazor.schedule import schedule_of
from detent.errors import DataError, RecipeError, UnknownNameError
from detent.graph import PreparedModel
from detent.training import Batches, Processes, Run, joined_processes, parameter_groups

__all__ = ["LSQEpochBasedLoop", "PTQLoop", "QATEpochBasedLoop", "Runner"]


class Runner:
    """What a loop is given: the model, the data, and the optimizer as a config describes it.

    Dataloaders are torch's, or dicts with `dataset`, `batch_size` (of each process) and perhaps
    `sampler=dict(shuffle=True)`. A data set gives (image, data sample); of a classifier that is the label. A model is
    trained on what its `loss` mode gives; one that was prepared without it on the cross entropy of what it gives.
    `device` is "cpu" or "cuda"; by default a GPU where there is one.
    """

    def __init__(
        self,
        model: Any,
        *,
        train_dataloader: Any = None,
        val_dataloader: Any = None,
        optim_wrapper: Mapping[str, Any] | None = None,
        param_scheduler: Any = None,
        work_dir: str | Path | None = None,
        seed: int = 0,
        device: str | None = None,
    ):
        self.model: MMArchitectureQuant = MODELS.build(model)
        self.train_dataloader, self.val_dataloader = train_dataloader, val_dataloader
        self.work_dir, self.seed = None if work_dir is None else Path(work_dir), seed
        self.device, self.processes = device, Processes()
        self._scheduler = param_scheduler
        self._optimizer = dict((optim_wrapper or {}).get("optimizer", {"type": "SGD", "lr": 0.01}))

    @classmethod
    def from_cfg(cls, cfg: Mapping[str, Any], **options: Any) -> Runner:
        """With the model and the optimizer of a config; data sets are objects, given as options."""
        if cfg.get("model_wrapper_cfg"):
            raise RecipeError(
                f"model_wrapper_cfg {cfg['model_wrapper_cfg']!r}",
                "a model is wrapped by Detent's own loops, where several processes were started",
                "leave it empty",
            )
        schedule = cfg.get("param_scheduler")
        made = cls(cfg["model"], optim_wrapper=cfg.get("optim_wrapper"), param_scheduler=schedule, **options)
        made.train_cfg = dict(cfg.get("train_cfg") or {})
        return made

    train_cfg: dict[str, Any]

    def train(self) -> dict[str, float]:
        """Run the loop of `train_cfg`, on all processes that `torchrun` started; the metrics."""
        given = {key: value for key, value in self.train_cfg.items() if key != "by_epoch"}  # every loop here is
        with joined_processes(self.device) as self.processes:
            loop = LOOPS.build(given, runner=self, dataloader=self.train_dataloader)
            metrics: dict[str, float] = loop.run()
        self.processes = Processes()
        return metrics

    def run_on(self, train: Any, calibration: Any = None) -> Run:
        """Detent's run of this model on these data."""
        prepared = self.model.prepared.to(self.processes.device)
        batches = self._batches(train)
        kind = OwnLossRun if {"loss", "tensor"} <= set(prepared.runners) else Run
        return kind(
            prepared=prepared,
            optimizer=self._made_optimizer(prepared),
            train=batches,
            val=self._batches(self.val_dataloader if self.val_dataloader is not None else train),
            calibration=self._batches(train if calibration is None else calibration),
            schedule=schedule_of(self._scheduler, lr=float(self._optimizer["lr"]), steps_per_epoch=len(batches)),
            folder=self.work_dir,
            processes=self.processes,
            seed=self.seed,
        )

    def _made_optimizer(self, prepared: PreparedModel) -> torch.optim.Optimizer:
        options = dict(self._optimizer)
        name = str(options.pop("type"))
        kind = getattr(torch.optim, name, None)
        if not (isinstance(kind, type) and issubclass(kind, torch.optim.Optimizer)):
            raise UnknownNameError(f"the optimizer {name!r}", "torch.optim has no such class", "use one of its classes")
        groups = parameter_groups(prepared, lr=options.pop("lr"), weight_decay=options.pop("weight_decay", 0.0))
        made: torch.optim.Optimizer = kind(groups, **options)
        return made

    def _batches(self, given: Any) -> Batches:
        if isinstance(given, DataLoader):
            shuffle = isinstance(given.sampler, RandomSampler)
            dataset, size = given.dataset, given.batch_size or 1
        elif isinstance(given, Mapping):
            shuffle = bool(given.get("sampler", {}).get("shuffle", False))
            dataset, size = given["dataset"], given["batch_size"]
        else:
            raise DataError(f"a dataloader of type {type(given).__name__}", "it is none", "give a DataLoader or a dict")
        here = self.processes
        return Batches(
            _Preprocessed(dataset, self.model.data_preprocessor),
            size * here.count,
            shuffle=shuffle,
            seed=self.seed,
            rank=here.rank,
            ranks=here.count,
            device=here.device,
        )


class _Preprocessed:
    def __init__(self, samples: Any, preprocessor: nn.Module):
        self._samples, self._preprocessor = samples, preprocessor

    def __len__(self) -> int:
        return len(self._samples)

    def __getitem__(self, index: int, /) -> tuple[Any, ...]:
        """What `forward` takes, `inputs` and `data_samples`, and the latter again as the labels."""
        image, data_sample = self._samples[index]
        ready: Tensor = self._preprocessor(image)
        return ready, data_sample, data_sample


class PTQLoop(training.PTQLoop):
    """Calibrate on at most `calibrate_steps` batches, then validate."""

    def __init__(self, runner: Runner, dataloader: Any, calibrate_dataloader: Any = None, calibrate_steps: int = 32):
        run = runner.run_on(dataloader, calibrate_dataloader)
        run.calibration.limit = calibrate_steps
        super().__init__(run)


class QATEpochBasedLoop(training.QATEpochLoop):
    """Train with measured ranges. What begins at an epoch of 0 or less never begins, as in MMRazor."""

    def __init__(
        self,
        runner: Runner,
        dataloader: Any,
        max_epochs: int,
        val_begin: int = 1,
        val_interval: int = 1,
        disable_observer_begin: int = -1,
        freeze_bn_begin: int = -1,
        dynamic_intervals: list[tuple[int, int]] | None = None,
    ):
        self.runner = runner
        super().__init__(
            runner.run_on(dataloader),
            max_epochs=max_epochs,
            val_begin=val_begin,
            val_interval=val_interval,
            freeze_bn_begin=freeze_bn_begin if freeze_bn_begin > 0 else None,
            stop_observing_begin=disable_observer_begin if disable_observer_begin > 0 else None,
            dynamic_intervals=dynamic_intervals or (),
        )


class LSQEpochBasedLoop(training.LSQEpochLoop, QATEpochBasedLoop):
    """Train with learned scales, which the first batch starts."""


LOOPS.offer(PTQLoop, QATEpochBasedLoop, LSQEpochBasedLoop)

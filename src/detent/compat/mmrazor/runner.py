"""mmengine's `Runner`, as far as quantization goes: a model, its data, and the loops of a config."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from detent.compat.mmrazor.architecture import MMArchitectureQuant
from detent.compat.mmrazor.data import Loader, Samples, loader_of
from detent.compat.mmrazor.own_loss import OwnLossRun
from detent.compat.mmrazor.registry import LOOPS, MODELS
from detent.compat.mmrazor.schedule import schedule_of
from detent.errors import DataError, RecipeError, UnknownNameError
from detent.graph import PreparedModel
from detent.training import Batches, Processes, Run, checkpoint, joined_processes, parameter_groups

__all__ = ["Runner"]

_LOADERS = ("train_dataloader", "val_dataloader", "test_dataloader")
_WRAPPERS = ("MMArchitectureQuantDDP", "MMDistributedDataParallel")


class Runner:
    """What a loop is given: the model, the data, and the optimizer as a config describes it.

    Dataloaders are torch's, or dicts with `dataset`, `batch_size` (of each process) and perhaps
    `sampler=dict(shuffle=True)`. A data set gives (image, data sample), or a dict of `inputs` and `data_samples`; of a
    classifier the data sample is the label. A model is trained on what its `loss` mode gives; one that was prepared
    without it on the cross entropy of what it gives. `train`, `val` and `test` run the loops of `train_cfg`, `val_cfg`
    and `test_cfg`. `load_from` is a checkpoint of such a run, whose weights and scales the model starts from; with
    `resume` training goes on from the newest one in `work_dir`. `device` is "cpu" or "cuda"; by default a GPU where
    there is one.
    """

    def __init__(
        self,
        model: Mapping[str, Any] | MMArchitectureQuant,
        *,
        train_dataloader: Any = None,
        val_dataloader: Any = None,
        test_dataloader: Any = None,
        train_cfg: Mapping[str, Any] | None = None,
        val_cfg: Mapping[str, Any] | None = None,
        test_cfg: Mapping[str, Any] | None = None,
        optim_wrapper: Mapping[str, Any] | None = None,
        param_scheduler: Any = None,
        work_dir: str | Path | None = None,
        load_from: str | Path | None = None,
        resume: bool = False,
        seed: int = 0,
        device: str | None = None,
    ):
        self.train_dataloader, self.val_dataloader = train_dataloader, val_dataloader
        self.test_dataloader = val_dataloader if test_dataloader is None else test_dataloader
        self.train_cfg, self.val_cfg, self.test_cfg = dict(train_cfg or {}), dict(val_cfg or {}), dict(test_cfg or {})
        self.work_dir, self.seed = None if work_dir is None else Path(work_dir), seed
        self.device, self.processes = device, Processes()
        self._scheduler = param_scheduler
        self._optimizer = dict((optim_wrapper or {}).get("optimizer", {"type": "SGD", "lr": 0.01}))
        self._given_for: list[tuple[Mapping[str, Any], Any]] = []
        self._loaders: list[tuple[Any, Loader]] = []
        self._hooks: list[Any] = []
        self.model = self._built(model)
        self.resume = resume
        if load_from is not None:
            checkpoint.load_model(load_from, self.model.prepared)

    @classmethod
    def from_cfg(cls, cfg: Mapping[str, Any], **options: Any) -> Runner:
        """A runner with the model, the loops, the optimizer and the data of a config; data sets given as options come
        first.

        Several processes are those that `torchrun` starts: a model is wrapped for them as DDP wants it, whatever the
        options of `model_wrapper_cfg`.
        """
        wrapper = str((cfg.get("model_wrapper_cfg") or {}).get("type", _WRAPPERS[0])).rpartition(".")[2]
        if wrapper not in _WRAPPERS:
            raise RecipeError(
                f"model_wrapper_cfg {cfg['model_wrapper_cfg']!r}",
                f"a model is wrapped as by {' or '.join(_WRAPPERS)}",
                "name one of these, or leave it out",
            )
        sections = (
            "train_cfg",
            "val_cfg",
            "test_cfg",
            "optim_wrapper",
            "param_scheduler",
            "work_dir",
            "load_from",
            "resume",
        )
        given = {name: cfg[name] for name in (*sections, *_LOADERS) if name in cfg} | options
        made = cls(cfg["model"], **given)
        # Data that a loop or another section describes as the config does are those that were given for it.
        made._given_for = [(cfg[name], options[name]) for name in _LOADERS if name in cfg and name in options]
        return made

    def train(self) -> dict[str, float]:
        """Run the loop of `train_cfg`, on all processes that `torchrun` started; the metrics."""
        cfg = {key: value for key, value in self.train_cfg.items() if key != "by_epoch"}  # every loop here is
        return self._run(cfg, self.train_dataloader)

    def val(self) -> dict[str, float]:
        """Run the loop of `val_cfg`; the metrics."""
        return self._run({"type": "ValLoop", **self.val_cfg}, self.val_dataloader)

    def test(self) -> dict[str, float]:
        """Run the loop of `test_cfg`, where `PTQLoop` is at home; the metrics."""
        return self._run({"type": "TestLoop", **self.test_cfg}, self.test_dataloader)

    def register_hook(self, hook: Any) -> None:
        """Have the methods of `hook` (`before_train_epoch`, `after_train_iter`, ...) called with this runner."""
        self._hooks.append(hook)

    def call_hook(self, fn_name: str, **arguments: Any) -> None:
        """Call the method of that name of each hook that has one."""
        for hook in self._hooks:
            if hasattr(hook, fn_name):
                getattr(hook, fn_name)(self, **arguments)

    def run_on(self, train: Any, *, calibration: Any = None, val: Any = None) -> Run:
        """Detent's run of this model on these data."""
        prepared = self.model.prepared.to(self.processes.device)
        batches = self._batches(train)
        val = self.val_dataloader if val is None else val
        kind = OwnLossRun if {"loss", "tensor"} <= set(prepared.runners) else Run
        return kind(
            prepared=prepared,
            optimizer=self._made_optimizer(prepared),
            train=batches,
            val=self._batches(train if val is None else val),
            calibration=self._batches(train if calibration is None else calibration),
            schedule=schedule_of(self._scheduler, lr=float(self._optimizer["lr"]), steps_per_epoch=len(batches)),
            folder=self.work_dir,
            processes=self.processes,
            seed=self.seed,
        )

    def _run(self, cfg: Mapping[str, Any], dataloader: Any) -> dict[str, float]:
        with self._joined():
            metrics: dict[str, float] = LOOPS.build(cfg, runner=self, dataloader=dataloader).run()
        return metrics

    @contextmanager
    def _joined(self) -> Iterator[None]:
        with joined_processes(self.device) as self.processes:
            yield
        self.processes = Processes()

    def _built(self, model: Mapping[str, Any] | MMArchitectureQuant) -> MMArchitectureQuant:
        """The model; the file that is deployed takes images of the size that the data have, if nothing else is said."""
        shape = self._image_shape()
        if shape is None:
            built: MMArchitectureQuant = MODELS.build(model)
            return built
        if isinstance(model, Mapping) and not {"input_shapes", "deploy_cfg"} & set(model):
            model = {**model, "input_shapes": shape}
        built = MODELS.build(model)
        if not built.shape_is_given:
            built.input_shapes = shape
        return built

    def _image_shape(self) -> tuple[int, ...] | None:
        for name in _LOADERS:
            try:
                image, *_ = self._loader(getattr(self, name)).samples[0]
                return (1, *image.shape)
            except DataError:
                continue  # what cannot be read is said where it is needed
        return None

    def _made_optimizer(self, prepared: PreparedModel) -> torch.optim.Optimizer:
        options = dict(self._optimizer)
        name = str(options.pop("type"))
        kind = getattr(torch.optim, name, None)
        if not (isinstance(kind, type) and issubclass(kind, torch.optim.Optimizer)):
            raise UnknownNameError(f"the optimizer {name!r}", "torch.optim has no such class", "use one of its classes")
        groups = parameter_groups(prepared, lr=options.pop("lr"), weight_decay=options.pop("weight_decay", 0.0))
        made: torch.optim.Optimizer = kind(groups, **options)
        return made

    def _loader(self, given: Any) -> Loader:
        for described, instead in self._given_for:
            if isinstance(given, Mapping) and given["dataset"] == described["dataset"]:
                given = instead
        for known, loader in self._loaders:
            if known is given or (isinstance(given, Mapping) and known == given):
                return loader
        self._loaders.append((given, loader_of(given)))  # a data set is read once
        return self._loaders[-1][1]

    def _ready(self, samples: Samples, image: Tensor, draw: torch.Generator) -> Tensor:
        ready: Tensor = self.model.data_preprocessor(samples.transform(image, draw))
        return ready

    def _batches(self, given: Any) -> Batches:
        loader, here = self._loader(given), self.processes
        return Batches(
            loader.samples,
            loader.batch_size * here.count,
            shuffle=loader.shuffle,
            seed=self.seed,
            augment=partial(self._ready, loader.samples),
            rank=here.rank,
            ranks=here.count,
            device=here.device,
        )

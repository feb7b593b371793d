"""From a config to the things it names: model, data, optimizer, run, loop."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from inspect import Parameter, signature
from pathlib import Path
from typing import Any

import torch
from torch import nn

from detent.data import Preprocessing
from detent.errors import DataError, DetentError, RecipeError
from detent.graph import PreparedModel
from detent.planning import Backend
from detent.preparing import prepare
from detent.recipes.refusal import nearest
from detent.targets import BACKENDS
from detent.training.batch import example_of
from detent.training.batches import Batches, Samples
from detent.training.config import Config
from detent.training.datasets import FASHION_MNIST, MNIST, ImageFolder, cifar10, crop_and_flip, idx_images, made_up
from detent.training.ema import Ema
from detent.training.import_paths import is_import_path, named
from detent.training.log import Log
from detent.training.loops import LSQEpochLoop, PTQLoop, QATEpochLoop
from detent.training.objective import LossFunction, Objective
from detent.training.parameter_groups import parameter_groups
from detent.training.precision import Precision
from detent.training.processes import Processes
from detent.training.run import Run
from detent.training.schedules import Schedule
from detent.zoo import ZOO, load_pretrained

__all__ = ["batches_of", "check_names", "float_model", "loop_of", "prepared_model", "run_of", "samples_of"]


def float_model(config: Config) -> nn.Module:
    """The model with its weights, before anything is done to it."""
    asked = config.model
    make = named(asked.name, "model") if is_import_path(asked.name) else _known(ZOO, "the model", asked.name)
    model = _called(make, f"model {asked.name}", **asked.options)
    if not isinstance(model, nn.Module):
        raise RecipeError(f"the model {asked.name!r}", f"it makes a {type(model).__name__}", "name an nn.Module")
    if asked.pretrained is not None:
        load_pretrained(model, asked.pretrained)
    return model


def samples_of(config: Config, split: str) -> Samples:
    """The data set's samples of a split, "train" or "test"."""
    asked = config.data
    folder = None if asked.folder is None else Path(asked.folder)
    if is_import_path(asked.name):
        found: Samples = _called(
            named(asked.name, "data set"), f"data set {asked.name}", folder, split, **asked.options
        )
        return found
    make = _known(_DATA_SETS, "the data set", asked.name)
    if folder is None and asked.name != "made_up":
        raise DataError(f"the data set {asked.name}", "no folder is given", "add data.folder, or say --data FOLDER")
    return _called(make, f"data set {asked.name}", folder, split, **asked.options)  # type: ignore[no-any-return]


def prepared_model(config: Config, model: nn.Module, samples: Samples) -> PreparedModel:
    """The model prepared for the config's backend, with one sample as its example."""
    backend: Backend | str = config.backend
    if is_import_path(config.backend):
        backend = named(config.backend, "backend")
        if not isinstance(backend, Backend):
            raise RecipeError(f"the backend {config.backend!r}", f"it is a {type(backend).__name__}", "name a Backend")
    else:
        _known(BACKENDS, "the backend", config.backend)
    example = example_of(samples[0])
    return prepare(model, example.args, example_kwargs=example.kwargs, backend=backend, recipe=config.recipe)


def batches_of(config: Config, samples: Samples, processes: Processes, **options: Any) -> Batches:
    """The samples in batches as the config has them."""
    return Batches(
        samples,
        config.data.batch_size,
        seed=config.train.seed,
        workers=config.data.workers,
        rank=processes.rank,
        ranks=processes.count,
        device=processes.device,
        **options,
    )


def run_of(config: Config, folder: Path | None, processes: Processes) -> Run:
    """Everything the config's loop works on."""
    data, test = samples_of(config, "train"), samples_of(config, "test")
    model = float_model(config)
    prepared = prepared_model(config, model, data).to(processes.device)
    train = batches_of(
        config,
        data,
        processes,
        shuffle=True,
        augment=crop_and_flip if config.data.augment else None,
        limit=config.data.train_batches,
    )
    return Run(
        prepared,
        _optimizer(config, prepared),
        train,
        batches_of(config, test, processes, limit=config.data.val_batches),
        batches_of(config, data, processes, shuffle=True, limit=config.data.calibration_batches),
        objective=_objective(config, model, processes),
        metrics={name: _function(str(path), f"metric {name}") for name, path in config.metrics.items()},
        schedule=_schedule(config, len(train)),
        ema=None if config.train.ema is None else Ema(prepared, config.train.ema),
        folder=folder,
        checkpoint_interval=config.train.checkpoint_interval,
        processes=processes,
        precision=Precision(config.train.precision, processes.device),
        log=Log(None),
        seed=config.train.seed,
    )


def loop_of(config: Config, run: Run) -> PTQLoop | QATEpochLoop | LSQEpochLoop:
    """The loop, with the recipe's `freeze_at_epoch` where the config does not say when batch norms freeze."""
    asked = config.train
    freeze = asked.freeze_bn_begin if asked.freeze_bn_begin is not None else config.recipe.batch_norm.freeze_at_epoch
    common: dict[str, Any] = {
        "max_epochs": asked.epochs,
        "val_begin": asked.val_begin,
        "val_interval": asked.val_interval,
        "freeze_bn_begin": freeze,
        "dynamic_intervals": asked.dynamic_intervals,
    }
    match asked.loop:
        case "ptq":
            return PTQLoop(run)
        case "qat":
            return QATEpochLoop(run, stop_observing_begin=asked.stop_observing_begin, **common)
        case "lsq":
            if asked.stop_observing_begin is not None:
                raise RecipeError(
                    f"train.stop_observing_begin = {asked.stop_observing_begin}",
                    "the loop lsq observes its first batch only",
                    "leave it out, or use the loop qat",
                )
            return LSQEpochLoop(run, **common)


def _objective(config: Config, model: nn.Module, processes: Processes) -> LossFunction:
    asked = config.loss
    if asked.function is None:
        teacher = model.to(processes.device) if asked.distillation else None
        return Objective(asked.label_smoothing, teacher, asked.distillation, asked.temperature)
    others = [key for key in asked.to_dict() if key != "function"]
    if others:
        raise RecipeError(
            f"loss.{others[0]} beside loss.function", "the function is the whole loss", f"leave {others[0]} out"
        )
    return _function(asked.function, "loss")


def _function(path: str, what: str) -> Callable[..., Any]:
    found: Callable[..., Any] = named(path, what)
    if not callable(found) or isinstance(found, type):
        raise RecipeError(f"the {what} {path!r}", f"it is a {type(found).__name__}", "name a function")
    return found


def _schedule(config: Config, epoch: int) -> Schedule:
    asked = config.schedule
    warmup = epoch * asked.warmup_epochs + asked.warmup_steps
    return Schedule(asked.name, epoch * config.train.epochs, warmup, asked.end, asked.start)


def _optimizer(config: Config, prepared: PreparedModel) -> torch.optim.Optimizer:
    asked = config.optimizer
    groups = parameter_groups(prepared, lr=asked.lr, weight_decay=asked.weight_decay, scale_lr=asked.scale_lr)
    match asked.name:
        case "sgd":
            return torch.optim.SGD(groups, lr=asked.lr, momentum=asked.momentum, nesterov=asked.nesterov)
        case "adam":
            return torch.optim.Adam(groups, lr=asked.lr, betas=(asked.momentum, 0.999))
        case "adamw":
            return torch.optim.AdamW(groups, lr=asked.lr, betas=(asked.momentum, 0.999))


def _image_folder(folder: Path, split: str, *, size: int = 224, resize: int = 256) -> ImageFolder:
    return ImageFolder(folder, split, Preprocessing(resize=resize, crop=(size, size)))


def _made_up(
    _: Path | None, split: str, *, count: int = 64, size: int = 32, channels: int = 3, classes: int = 10
) -> Samples:
    return made_up(split, count=count, size=size, channels=channels, classes=classes)


_DATA_SETS: dict[str, Callable[..., Any]] = {
    "cifar10": cifar10,
    "mnist": lambda folder, split: idx_images(folder, split, MNIST, "MNIST"),
    "fashion_mnist": lambda folder, split: idx_images(folder, split, FASHION_MNIST, "Fashion-MNIST"),
    "image_folder": _image_folder,
    "made_up": _made_up,
}


def check_names(config: Config, source: str) -> None:
    """Refuse a name that is in no table, and an option it does not take, with the file and the key that say it."""
    for section, asked, table in (("model", config.model, ZOO), ("data", config.data, _DATA_SETS)):
        if not is_import_path(asked.name):
            make = _known(table, f"{source}: {section}.name =", asked.name)
            _check_options(make, f"{source}: {section}.options", asked.options)
    if not is_import_path(config.backend):
        _known(BACKENDS, f"{source}: backend =", config.backend)


def _check_options(make: Any, where: str, options: Mapping[str, Any]) -> None:
    taken = signature(make).parameters.values()
    known = [parameter.name for parameter in taken if parameter.kind is Parameter.KEYWORD_ONLY]
    for key, value in options.items():
        if key not in known:
            found = f"known are {', '.join(known)}" if known else "there are no options"
            raise RecipeError(f"{where}.{key} = {value!r}", found, nearest(key, known, "remove it"))


def _known(table: Mapping[str, Any], what: str, name: str) -> Any:
    if name not in table:
        advice = nearest(name, table, "use one of these, or package.module:Name for your own")
        raise RecipeError(f"{what} {name!r}", f"known are {', '.join(sorted(table))}", advice)
    return table[name]


def _called(make: Any, what: str, *given: Any, **options: Any) -> Any:
    try:
        return make(*given, **options)
    except DetentError:
        raise
    except TypeError as error:
        raise RecipeError(f"the {what} with {dict(options)}", str(error), "give options that it takes") from None

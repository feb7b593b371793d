"""Builds what a config names: model, data, optimizer, run, loop."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from inspect import Parameter, signature
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import Dataset

from detent.data import Preprocessing
from detent.errors import DataError, DetentError, RecipeError
from detent.graph import PreparedModel
from detent.planning import Backend
from detent.preparing import prepare, with_batch_norms
from detent.recipes.refusal import nearest
from detent.targets import BACKENDS
from detent.training.batch import example_of
from detent.training.batches import Batches, Samples
from detent.training.config import Config
from detent.training.datasets import (
    FASHION_MNIST,
    MNIST,
    ImageFolder,
    ListedImages,
    Npz,
    cifar10,
    crop_and_flip,
    idx_images,
    made_up,
)
from detent.training.ema import Ema
from detent.training.import_paths import (
    import_class,
    import_function,
    import_maker,
    import_object,
    is_import_path,
    refuse_import,
)
from detent.training.log import Log
from detent.training.loops import LSQEpochLoop, PTQLoop, QATEpochLoop
from detent.training.objective import LossFunction, Objective
from detent.training.parameter_groups import parameter_groups
from detent.training.precision import Precision
from detent.training.processes import Processes
from detent.training.run import Run
from detent.training.schedules import Schedule
from detent.zoo import ZOO, load_pretrained

__all__ = [
    "batches_of",
    "check_names",
    "float_model",
    "loop_of",
    "prepared_model",
    "refuse_imports",
    "run_of",
    "samples_of",
]


def float_model(config: Config, *, allow_imports: bool = False) -> nn.Module:
    """The model with its weights, before it is prepared."""
    asked = config.model
    make = (
        import_class(asked.name, "model", nn.Module, allowed=allow_imports)
        if is_import_path(asked.name)
        else _known(ZOO, "the model", asked.name)
    )
    model: nn.Module = _called(make, f"model {asked.name}", **asked.options)
    if asked.pretrained is not None:
        load_pretrained(model, asked.pretrained)
    return model


def samples_of(config: Config, split: str, *, allow_imports: bool = False) -> Samples:
    """The samples of a split, "train" or "test"."""
    asked = config.data
    folder = None if asked.folder is None else Path(asked.folder)
    if is_import_path(asked.name):
        own = import_maker(asked.name, "data set", Dataset, allowed=allow_imports)
        return _some(_called(own, f"data set {asked.name}", folder, split, **asked.options), asked.name, split)
    make = _known(_DATA_SETS, "the data set", asked.name)
    if folder is None and asked.name not in _WITHOUT_FOLDER:
        raise DataError(f"the data set {asked.name}", "no folder is given", "add data.folder, or pass --data FOLDER")
    return _some(_called(make, f"data set {asked.name}", folder, split, **asked.options), asked.name, split)


def _some(samples: Samples, name: str, split: str) -> Samples:
    if len(samples) == 0:
        raise DataError(f"the data set {name}", f"its split {split!r} has no samples", "give it some")
    return samples


def prepared_model(config: Config, model: nn.Module, samples: Samples, *, allow_imports: bool = False) -> PreparedModel:
    """The model prepared for the config's backend, with one sample as its example."""
    backend: Backend | str = config.backend
    if is_import_path(config.backend):
        ours = config.backend.startswith("detent.")
        backend = import_object(config.backend, "backend", allowed=allow_imports or ours)
        if not isinstance(backend, Backend):
            raise RecipeError(f"the backend {config.backend!r}", f"it is a {type(backend).__name__}", "name a Backend")
    else:
        _known(BACKENDS, "the backend", config.backend)
    target = BACKENDS[backend] if isinstance(backend, str) else backend
    recipe = config.recipe if config.train.loop == "ptq" else with_batch_norms(config.recipe, target)
    example = example_of(samples[0])
    return prepare(model, example.args, example_kwargs=example.kwargs, backend=target, recipe=recipe)


def batches_of(config: Config, samples: Samples, processes: Processes, **options: Any) -> Batches:
    """The samples in batches, as the config says."""
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


def run_of(config: Config, folder: Path | None, processes: Processes, *, allow_imports: bool = False) -> Run:
    """The run that the config's loop works on."""
    data, test = (samples_of(config, split, allow_imports=allow_imports) for split in ("train", "test"))
    model = float_model(config, allow_imports=allow_imports)
    prepared = prepared_model(config, model, data, allow_imports=allow_imports).to(processes.device)
    metrics = {
        name: import_function(str(path), f"metric {name}", allowed=allow_imports)
        for name, path in config.metrics.items()
    }
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
        objective=_objective(config, model, processes, allow_imports=allow_imports),
        metrics=metrics,
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
        "reestimate_bn": asked.reestimate_bn,
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


def _objective(config: Config, model: nn.Module, processes: Processes, *, allow_imports: bool) -> LossFunction:
    asked = config.loss
    if asked.function is None:
        teacher = model.to(processes.device) if asked.distillation else None
        return Objective(asked.label_smoothing, teacher, asked.distillation, asked.temperature)
    others = [key for key in asked.to_dict() if key != "function"]
    if others:
        raise RecipeError(
            f"loss.{others[0]} beside loss.function", "the function is the whole loss", f"leave {others[0]} out"
        )
    return import_function(asked.function, "loss", allowed=allow_imports)


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
    "listed_images": ListedImages,
    "npz": Npz,
}
_MOST_BLOCKS = 1000  # of a stage: deeper networks are not trained
_WITHOUT_FOLDER = ("made_up", "listed_images")


def check_names(config: Config, source: str) -> None:
    """Refuse an unknown name or option; the error gives the file and the key."""
    for section, asked, table in (("model", config.model, ZOO), ("data", config.data, _DATA_SETS)):
        if not is_import_path(asked.name):
            make = _known(table, f"{source}: {section}.name =", asked.name)
            _check_options(make, f"{source}: {section}.options", asked.options)
    if not is_import_path(config.backend):
        _known(BACKENDS, f"{source}: backend =", config.backend)


def refuse_imports(config: Config, source: str, *, but: Collection[str] = ()) -> None:
    """Refuse every import path in a config, except at the keys `but`, whose values do not come from the file."""
    paths = {"model.name": config.model.name, "data.name": config.data.name, "backend": config.backend}
    paths |= {"loss.function": config.loss.function or ""}
    paths |= {f"metrics.{name}": str(path) for name, path in config.metrics.items()}
    for section, names in dict(config.imports).items():
        paths |= {f"imports.{section}.{name}": str(path) for name, path in names.items()}
    for key, path in paths.items():
        own = key == "backend" and path.startswith("detent.")  # a Backend of ours: a name like any other
        if key not in but and not own and is_import_path(path):
            raise refuse_import(f"{key} of {source},", path)


def _check_options(make: Any, where: str, options: Mapping[str, Any]) -> None:
    taken = signature(make).parameters.values()
    known = [parameter.name for parameter in taken if parameter.kind is Parameter.KEYWORD_ONLY]
    for key, value in options.items():
        if key not in known:
            found = f"not one of {', '.join(known)}" if known else "there are no options"
            raise RecipeError(f"{where}.{key} = {value!r}", found, nearest(key, known, "remove it"))
        if key == "depth" and isinstance(value, int) and value > _MOST_BLOCKS:  # which are built one by one
            raise RecipeError(f"{where}.{key} = {value!r}", "too many blocks", f"ask for at most {_MOST_BLOCKS:,}")


def _known(table: Mapping[str, Any], what: str, name: str) -> Any:
    if name not in table:
        advice = nearest(name, table, "use one of these, or package.module:Name for your own")
        raise RecipeError(f"{what} {name!r}", f"not one of {', '.join(sorted(table))}", advice)
    return table[name]


def _called(make: Any, what: str, *given: Any, **options: Any) -> Any:
    try:
        return make(*given, **options)
    except DetentError:
        raise
    except (Exception, MemoryError) as error:  # whatever the options make of it
        found = str(error) if isinstance(error, TypeError) else f"{type(error).__name__}: {error}"
        raise RecipeError(f"the {what} with {dict(options)}", found, "give options that it takes") from error

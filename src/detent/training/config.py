"""The config file: strict, like the recipe that it contains."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, PlainValidator

from detent.errors import DetentError
from detent.recipes import Options, Recipe, find
from detent.recipes.checks import Text, a_list, one_of, within
from detent.recipes.options import Scalar
from detent.recipes.refusal import RefusalError
from detent.recipes.section import Section
from detent.training.precision import PrecisionName
from detent.training.schedules import ScheduleName
from detent.training.trackers import TrackerName

__all__ = [
    "Config",
    "DataConfig",
    "DeployConfig",
    "LogConfig",
    "LossConfig",
    "ModelConfig",
    "OptimizerConfig",
    "ScheduleConfig",
    "TrainConfig",
]

LoopName = Literal["ptq", "qat", "lsq"]
OptimizerName = Literal["sgd", "adam", "adamw"]
DeviceName = Literal["cpu", "cuda"]

_MANY = 2**31 - 1
_LONGEST_NAME = 200
_Options = Annotated[Mapping[str, Scalar], PlainValidator(Options.of)]
_Count = Annotated[int, within(1, _MANY)]


def _between(least: float, most: float) -> AfterValidator:
    def check(value: float) -> float:
        if not least <= value <= most:
            raise RefusalError(f"allowed are {least:g} to {most:g}", "choose a number in between")
        return float(value)

    return AfterValidator(check)


def _recipe(value: object) -> object:
    if not isinstance(value, str):
        return value
    try:
        return find(value)
    except DetentError as error:
        raise RefusalError(error.found, error.to_do) from None


def _pairs(value: object) -> object:
    if not isinstance(value, list | tuple):
        raise RefusalError(f"it is a {type(value).__name__}", "give a list of [epoch, interval]")
    return tuple(tuple(pair) if isinstance(pair, list) else pair for pair in value)


def _as_text(value: object) -> object:
    """`precision: 32` in a file is a number."""
    return str(value) if type(value) is int else value


def _folder_name(value: str) -> str:
    """The run's folder name must be a single name, so that a run cannot be written outside of the folder of runs."""
    if value in (".", "..") or any(letter in value for letter in "/\\\0") or len(value.encode()) > _LONGEST_NAME:
        found = f"it names a folder, so it has neither / nor \\, and at most {_LONGEST_NAME} bytes"
        raise RefusalError(found, "give a plain name; -o says where a run is written")
    return value


class ModelConfig(Section, frozen=True):
    """`name` is a network of the zoo or `package.module:Name`, called with `options`; `pretrained` is a file of
    weights."""

    name: Text
    options: _Options = Options()
    pretrained: Text | None = None


class DataConfig(Section, frozen=True):
    """`name` is a data set that comes with Detent, or `package.module:Name`, called with folder, split and `options`.

    `batch_size` counts the samples of all processes together.
    """

    name: Text
    folder: Text | None = None
    options: _Options = Options()
    batch_size: _Count = 64
    augment: bool = False
    workers: Annotated[int, within(0, 256)] = 0
    train_batches: _Count | None = None
    val_batches: _Count | None = None
    calibration_batches: _Count = 8


class TrainConfig(Section, frozen=True):
    """The loop and its options, which are described at the loop classes. `ema` is the decay of averaged weights."""

    loop: Annotated[LoopName, one_of(LoopName, "qat")] = "qat"
    epochs: _Count = 1
    val_begin: _Count = 1
    val_interval: _Count = 1
    dynamic_intervals: Annotated[tuple[tuple[int, int], ...], BeforeValidator(_pairs)] = ()
    freeze_bn_begin: _Count | None = None
    reestimate_bn: bool = False
    stop_observing_begin: _Count | None = None
    checkpoint_interval: _Count | None = None
    ema: Annotated[float, _between(0, 1)] | None = None
    seed: Annotated[int, within(0, _MANY)] = 0
    device: Annotated[DeviceName | None, one_of(DeviceName)] = None
    precision: Annotated[PrecisionName, one_of(PrecisionName, "32"), BeforeValidator(_as_text)] = "32"


class OptimizerConfig(Section, frozen=True):
    """`scale_lr` is the learning rate of quantizer parameters; it defaults to that of the weights."""

    name: Annotated[OptimizerName, one_of(OptimizerName, "sgd")] = "sgd"
    lr: Annotated[float, _between(0, 1e6)] = 0.01
    scale_lr: Annotated[float, _between(0, 1e6)] | None = None
    momentum: Annotated[float, _between(0, 1)] = 0.9
    weight_decay: Annotated[float, _between(0, 1)] = 0.0
    nesterov: bool = False


class ScheduleConfig(Section, frozen=True):
    """Learning rates over the run: linear growth from `start` of them, then `name`, down to `end` of them.

    They grow for `warmup_epochs`, and `warmup_steps` more.
    """

    name: Annotated[ScheduleName, one_of(ScheduleName, "cosine")] = "cosine"
    warmup_epochs: Annotated[int, within(0, _MANY)] = 0
    warmup_steps: Annotated[int, within(0, _MANY)] = 0
    start: Annotated[float, _between(0, 1)] = 0.0
    end: Annotated[float, _between(0, 1)] = 0.0


class LossConfig(Section, frozen=True):
    """`distillation` is the weight of the float model's outputs, from 0 (not used) to 1 (nothing else). `function` is
    the import path of a function of (outputs, batch) that replaces all of these."""

    function: Text | None = None
    label_smoothing: Annotated[float, _between(0, 1)] = 0.0
    distillation: Annotated[float, _between(0, 1)] = 0.0
    temperature: Annotated[float, _between(1e-3, 1e3)] = 1.0


class DeployConfig(Section, frozen=True):
    """Whether to deploy the result, formats that replace the backend's, and how much data to verify it with."""

    enabled: bool = True
    files: Annotated[tuple[Text, ...], a_list] = ()
    verify_batches: Annotated[int, within(0, 10_000)] = 2


class LogConfig(Section, frozen=True):
    """Trackers in addition to `log.csv`, and the project or experiment of the run there."""

    to: Annotated[tuple[Annotated[TrackerName, one_of(TrackerName)], ...], a_list] = ("tensorboard",)
    project: Text = "detent"


class Registrations(Section, frozen=True):
    """User-defined observers, quantizers and algorithms: names to import paths."""

    observers: _Options = Options()
    quantizers: _Options = Options()
    algorithms: _Options = Options()


class Config(Section, frozen=True):
    """A whole run: what is trained, on which data, for which backend, with which recipe, and how.

    `metrics` are names to import paths of functions of (outputs, batch); the first one decides which checkpoint is
    best.
    """

    name: Annotated[Text, AfterValidator(_folder_name)]
    model: ModelConfig
    data: DataConfig
    backend: Text
    recipe: Annotated[Recipe, BeforeValidator(_recipe)]
    train: TrainConfig = TrainConfig()
    optimizer: OptimizerConfig = OptimizerConfig()
    schedule: ScheduleConfig = ScheduleConfig()
    loss: LossConfig = LossConfig()
    metrics: _Options = Options()
    deploy: DeployConfig = DeployConfig()
    log: LogConfig = LogConfig()
    imports: Registrations = Registrations()

    def with_changes(self, section: str, **changes: Any) -> Config:
        """Another config with some values of one section changed; None leaves a value unchanged."""
        changed = {key: value for key, value in changes.items() if value is not None}
        return self.replace(**{section: getattr(self, section).replace(**changed)}) if changed else self

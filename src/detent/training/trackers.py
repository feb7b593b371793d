"""Where a run is followed beside its `log.csv`: TensorBoard, Weights & Biases, MLflow.

Weights & Biases and MLflow read their own environment variables: `WANDB_MODE=offline` keeps a run on this machine, from
where `wandb sync` sends it; `MLFLOW_TRACKING_URI` names the server, or the file, that runs are written to.
"""

from __future__ import annotations

import json
import uuid
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

from detent.errors import RecipeError, install_hint
from detent.files import read_bytes, write_bytes

__all__ = ["TRACKERS", "Tracker", "TrackerName", "Tracking"]

TrackerName = Literal["tensorboard", "wandb", "mlflow"]

_IDS = "trackers.json"
_MOST_BYTES = 4096  # of that file
_MOST_PARAMETERS = 100  # that MLflow takes at a time


class Tracker(ABC):
    """Takes the values of a step. `id` is that of the run; it is None for a new one."""

    id: str | None = None

    @abstractmethod
    def write(self, step: int, values: Mapping[str, float]) -> None: ...

    @abstractmethod
    def close(self) -> None: ...


class TensorBoard(Tracker):
    """Events in the folder `events` of the run."""

    def __init__(self, folder: Path, **_: Any):
        from torch.utils.tensorboard import SummaryWriter

        self._events = SummaryWriter(str(folder / "events"))

    def write(self, step: int, values: Mapping[str, float]) -> None:
        for name, value in values.items():
            self._events.add_scalar(name, value, step)
        self._events.flush()

    def close(self) -> None:
        self._events.close()


class WandB(Tracker):
    """A run of Weights & Biases; its files are in the folder `wandb` of the run."""

    def __init__(self, folder: Path, *, project: str, name: str, config: Mapping[str, Any], id: str | None):  # noqa: A002
        import wandb

        self.id = id or uuid.uuid4().hex[:16]
        self._run = wandb.init(
            project=project, name=name, dir=str(folder), config=dict(config), id=self.id, resume="allow"
        )

    def write(self, step: int, values: Mapping[str, float]) -> None:
        self._run.log(dict(values), step=step)

    def close(self) -> None:
        self._run.finish()


class MLflow(Tracker):
    """A run of the MLflow experiment that is named as the project."""

    def __init__(self, _: Path, *, project: str, name: str, config: Mapping[str, Any], id: str | None):  # noqa: A002
        from mlflow import MlflowClient
        from mlflow.entities import Param

        self._client = MlflowClient()
        if id is None:
            known = self._client.get_experiment_by_name(project)
            experiment = self._client.create_experiment(project) if known is None else known.experiment_id
            id = str(self._client.create_run(experiment, run_name=name).info.run_id)  # noqa: A001
            parameters = [Param(key, str(value)) for key, value in _dotted(config)]
            for start in range(0, len(parameters), _MOST_PARAMETERS):
                self._client.log_batch(id, params=parameters[start : start + _MOST_PARAMETERS])
        self.id = id

    def write(self, step: int, values: Mapping[str, float]) -> None:
        for name, value in values.items():
            self._client.log_metric(self.id, name, value, step=step)

    def close(self) -> None:
        self._client.set_terminated(self.id)


TRACKERS: Mapping[TrackerName, type[Tracker]] = {"tensorboard": TensorBoard, "wandb": WandB, "mlflow": MLflow}


@dataclass(frozen=True)
class Tracking:
    """The trackers of a run, its name there, and the config that is shown with it."""

    to: Sequence[TrackerName] = ("tensorboard",)
    project: str = "detent"
    name: str = "run"
    config: Mapping[str, Any] = field(default_factory=dict)

    def require(self) -> None:
        """Refuse a tracker whose package is not installed. TensorBoard, which nobody asked for, is only missed."""
        for name in self.to:
            if name != "tensorboard" and find_spec(name) is None:
                raise RecipeError(f"log to {name}", f"{name} is not installed", install_hint(name))

    def open(self, folder: Path, *, resume: bool) -> tuple[list[Tracker], list[str]]:
        """The trackers, and notes of what is missing. A resumed run goes on where it was followed before."""
        self.require()
        ids = _read_ids(folder) if resume else {}
        opened: dict[str, Tracker] = {}
        notes = []
        for kind in self.to:
            try:
                tracker: Any = TRACKERS[kind]
                opened[kind] = tracker(
                    folder, project=self.project, name=self.name, config=self.config, id=ids.get(kind)
                )
            except ImportError:
                if kind != "tensorboard":
                    raise
                notes.append(f"no TensorBoard events: {install_hint('train')}; the log is in log.csv")
        held = {kind: tracker.id for kind, tracker in opened.items() if tracker.id is not None}
        if held:
            write_bytes(folder / _IDS, json.dumps(held).encode())
        return list(opened.values()), notes


def _read_ids(folder: Path) -> dict[str, str]:
    try:
        found = json.loads(read_bytes(folder / _IDS, most=_MOST_BYTES))
    except (OSError, ValueError, RecursionError):
        return {}
    return {key: value for key, value in found.items() if isinstance(value, str)} if isinstance(found, dict) else {}


def _dotted(config: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, Any]]:
    """
    >>> list(_dotted({"optimizer": {"lr": 0.1}, "name": "a"}))
    [('optimizer.lr', 0.1), ('name', 'a')]
    """
    for key, value in config.items():
        if isinstance(value, Mapping):
            yield from _dotted(value, f"{path}{key}.")
        else:
            yield f"{path}{key}", value

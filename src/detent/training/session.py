"""The work of `detent train` and `detent deploy`: train as a config says, evaluate, deploy, verify."""

from __future__ import annotations

import logging
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

from torch import Tensor

from detent.artifact import Artifact, deploy, require_writable
from detent.errors import ArtifactError
from detent.files import locked
from detent.graph import PreparedModel
from detent.recipes.files import write
from detent.training import checkpoint
from detent.training.batch import inputs_of, labels_of
from detent.training.build import batches_of, float_model, loop_of, prepared_model, refuse_imports, run_of, samples_of
from detent.training.config import Config
from detent.training.log import Log
from detent.training.processes import Processes, joined_processes
from detent.training.random_state import seed_everything
from detent.training.run import LAST
from detent.training.trackers import Tracking
from detent.verification import Verdict

__all__ = ["Outcome", "deploy_checkpoint", "for_verify", "train"]

ARTIFACT = "artifact"

_LOG = logging.getLogger("detent")


@dataclass(frozen=True)
class Outcome:
    """Metrics of the last validation, the deployed folder and its verdict if there are any, and remarks."""

    metrics: dict[str, float]
    folder: Path
    artifact: Artifact | None = None
    verdict: Verdict | None = None
    notes: tuple[str, ...] = field(default=())

    def to_dict(self) -> dict[str, Any]:
        return {
            "folder": str(self.folder),
            "metrics": self.metrics,
            "artifact": None if self.artifact is None else str(self.artifact.folder),
            "verdict": None if self.verdict is None else self.verdict.to_dict(),
            "notes": list(self.notes),
        }


def train(config: Config, folder: str | Path, *, resume: bool = False, allow_imports: bool = False) -> Outcome | None:
    """Train as the config says in `folder`, deploy into `folder/artifact`, and verify. Returns None on all processes
    but the first.

    Without `allow_imports`, a config that names code by an import path is refused.
    """
    if not allow_imports:
        refuse_imports(config, config.name)
    tracking = Tracking(config.log.to, config.log.project, config.name, config.to_full_dict())
    tracking.require()
    where = Path(folder)
    last = where / LAST
    if last.exists() and not resume:
        raise ArtifactError(f"train in {where}", f"it holds a run, {last}", "use --resume, or choose another folder")
    if resume and not last.exists():
        raise ArtifactError(f"resume in {where}", f"there is no {LAST}", "train without --resume first")
    with joined_processes(config.train.device) as processes, _exclusive(where, processes):
        if processes.first:
            epochs = f"{config.train.epochs} epoch{'s' * (config.train.epochs != 1)}"
            _LOG.info("training %s for %s in %s, %s", config.name, config.backend, where, epochs)
        seed_everything(config.train.seed)
        run = run_of(config, where, processes, allow_imports=allow_imports)
        if processes.first and config.deploy.enabled:
            require_writable(where / ARTIFACT, run.prepared.backend, files=config.deploy.files or None)
        seed_everything(config.train.seed + processes.rank)  # dropout of its own on each process
        if resume:
            run.resume(last)
        elif processes.first:
            write(config.to_full_dict(), where / "config.yaml")
        if processes.first:
            step, rows = (run.progress.step, run.progress.log_rows) if resume else (None, None)
            run.log = Log(where, resume_step=step, resume_rows=rows, tracking=tracking)
        metrics = loop_of(config, run).run()
        run.log.close()
        if not processes.first:
            return None
        notes = () if run.log.note is None else (run.log.note,)
        if not config.deploy.enabled:
            return Outcome(metrics, where, notes=notes)
        with run.ema.in_place() if run.ema is not None else nullcontext():
            artifact, verdict = _deployed(config, run.prepared, where / ARTIFACT, allow_imports=allow_imports)
        return Outcome(metrics, where, artifact, verdict, notes)


def deploy_checkpoint(config: Config, path: str | Path, folder: str | Path, *, allow_imports: bool = False) -> Outcome:
    """Deploy and verify the model of a checkpoint, with averaged weights if it has them."""
    if not allow_imports:
        refuse_imports(config, config.name)
    samples = samples_of(config, "test", allow_imports=allow_imports)
    model = float_model(config.replace(model=_without_weights(config)), allow_imports=allow_imports)
    prepared = prepared_model(config, model, samples, allow_imports=allow_imports)
    checkpoint.load_model(path, prepared)
    artifact, verdict = _deployed(config, prepared, Path(folder), allow_imports=allow_imports)
    return Outcome({}, Path(folder), artifact, verdict)


def _exclusive(folder: Path, processes: Processes) -> AbstractContextManager[None]:
    """A context that allows one run at a time in a folder; all its processes count as one."""
    return locked(folder, f"train in {folder}") if processes.first else nullcontext()


def _without_weights(config: Config) -> Any:
    """The checkpoint has the weights; the file they came from may no longer exist."""
    return config.model.replace(pretrained=None)


def _deployed(
    config: Config, prepared: PreparedModel, folder: Path, *, allow_imports: bool
) -> tuple[Artifact, Verdict | None]:
    prepared = prepared.cpu().eval()
    artifact = deploy(prepared, folder, files=config.deploy.files or None)
    count = config.deploy.verify_batches
    if not count:
        return artifact, None
    batches = batches_of(config, samples_of(config, "test", allow_imports=allow_imports), Processes())
    return artifact, artifact.verify([for_verify(batch) for batch in islice(batches, count)], latency=False)


def for_verify(batch: Any) -> Any:
    """Inputs by name if the model takes them so, otherwise in order; with the labels if they are class labels."""
    inputs, labels = inputs_of(batch), labels_of(batch)
    of_classes = isinstance(labels, Tensor) and labels.ndim == 1 and not labels.is_floating_point()
    return inputs.kwargs or (*inputs.args, *([labels] if of_classes else []))

"""`tune`: quantize, measure on the engine, and change the recipe until the metric is as good as asked."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from itertools import islice
from pathlib import Path
from typing import Any

from onnx import ModelProto
from torch import nn

from detent.artifact import Artifact, require_writable
from detent.deployment.atomic_folder import place, target_of
from detent.errors import RecipeError
from detent.files import reserved, temporary_folder
from detent.ir import Package
from detent.loading import load
from detent.planning import Backend
from detent.quantizing import STEPS, as_tensors
from detent.recipes import Recipe, find
from detent.targets import BACKENDS
from detent.tuning.metrics import Metric
from detent.tuning.result import Trial, Tuned
from detent.tuning.search import Search

__all__ = ["tune"]


def tune(
    model: str | os.PathLike[str] | ModelProto | nn.Module,
    batches: Iterable[Any],
    *,
    backend: str | Backend,
    metric: Metric,
    drop: float,
    folder: str | os.PathLike[str],
    recipe: str | Recipe = "ptq",
    steps: int | None = None,
    cpu: str | None = None,
    report: Callable[[Trial], None] = lambda _: None,
) -> Tuned:
    """Deploy the first model that loses at most `drop` of the float model's `metric`, or else the best one found.

    `metric` gets a function that takes the inputs of the network and returns its outputs, and returns a number (higher
    is better); it is measured on the engine, or on the twin if the engine is missing. `recipe` is tried first, then
    changes that cost nothing at run time (observers, equalization, bias correction, AdaRound), then more bits, and
    finally float for as few operations as possible. A change that gains nothing is undone. `batches` calibrate, as
    `detent.quantize` takes them; `report` is called after each trial.
    """
    if not drop >= 0:
        raise RecipeError(f"tune with drop={drop}", "nothing is that much better than float", "give 0 or more")
    target = BACKENDS[backend] if isinstance(backend, str) else backend
    final = Path(folder)
    require_writable(final, target)
    network = model if isinstance(model, nn.Module) else load(model)
    request = find(recipe)
    data = list(islice(as_tensors(batches), steps or request.calibration.batches or STEPS))
    with reserved(final, f"tune into {final}"), temporary_folder() as scratch:
        search = Search(network, data, target, metric, drop, cpu, scratch, report)
        best = search.run(request)
        made = best.artifact.folder
        files = [path for path in sorted(made.rglob("*")) if path.is_file()]
        place(target_of(final), {str(path.relative_to(made)): path.read_bytes() for path in files})
    loaded = Package.load(final)
    return Tuned(
        artifact=Artifact(loaded.folder, loaded.manifest, best.prepared),
        recipe=best.recipe,
        score=best.score,
        float_score=search.float_score,
        target=search.target,
        trials=tuple(search.trials),
        measured_on=search.measured_on,
    )

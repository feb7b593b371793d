"""`detent tune`: quantize until the deployed model is as accurate as asked."""

from __future__ import annotations

import json as json_format
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from detent.cli.crash_guard import go_on_in_child
from detent.cli.image_options import Crop, Layout, Mean, Resize, Std, batches_of, preprocessing
from detent.cli.input_options import Set, Size, parse_sizes, parse_values
from detent.cli.interrupts import nothing_written, on_interrupt
from detent.cli.options import (
    AsJson,
    Backend,
    BatchSize,
    CalibrationData,
    Cpu,
    OnnxFile,
    OutFolder,
    RecipeName,
    Steps,
)
from detent.cli.paths import require_data

if TYPE_CHECKING:
    from detent.tuning import Trial

__all__ = ["tune"]

ACCURACY = "accuracy"


@on_interrupt(nothing_written)
def tune(
    model: OnnxFile,
    backend: Backend,
    data: CalibrationData,
    out: OutFolder,
    drop: Annotated[
        float, typer.Option(min=0, help="How much of the metric may be lost; for accuracy, in percentage points.")
    ],
    validation: Annotated[
        str | None,
        typer.Option(
            help="Data with labels to measure the metric on; same formats as --data.",
            show_default="--data",
            callback=require_data,
        ),
    ] = None,
    metric: Annotated[
        str,
        typer.Option(
            help="'accuracy', or file.py:function, which takes a network and returns a number (higher is better)."
        ),
    ] = ACCURACY,
    recipe: RecipeName = "ptq",
    save_recipe: Annotated[
        Path | None, typer.Option(dir_okay=False, help="Write the recipe it found: .yaml, .json or .toml.")
    ] = None,
    cpu: Cpu = None,
    steps: Steps = 64,
    batch_size: BatchSize = None,
    size: Size = None,
    values: Set = None,
    resize: Resize = None,
    crop: Crop = None,
    mean: Mean = None,
    std: Std = None,
    layout: Layout = None,
    json: AsJson = False,
) -> None:
    """Quantize an ONNX model, and change the recipe until the engine loses no more than --drop.

    If nothing is good enough, the best model found is written and the exit code is 1.

    Changes that cost nothing at run time are tried first, then more bits, then float for as few operations as possible.

    Example: detent tune model.onnx --backend openvino --data calib/ --validation val.npz --drop 0.5 -o out/
    """
    if ":" in metric:
        require_data(metric)
    how = preprocessing(resize, crop, mean, std, layout)
    go_on_in_child(f"tune {model}")
    from detent.frontends.onnx import ports_of, types_of
    from detent.loading import load
    from detent.quantizing import BATCH_SIZE
    from detent.recipes.files import format_of
    from detent.tuning import accuracy
    from detent.tuning import tune as run

    if save_recipe is not None:
        format_of(save_recipe, "save the recipe")  # now, and not when all is tuned
    network = load(model, sizes=parse_sizes(size), values=parse_values(values))
    ports = ports_of(network)

    def read(where: str) -> Iterable[Any]:
        return batches_of(where, ports, types_of(network), batch_size=batch_size, usual_size=BATCH_SIZE, how=how)

    measure = accuracy(read(validation or data)) if metric == ACCURACY else _named_metric(metric)
    tuned = run(
        network,
        read(data),
        backend=backend,
        metric=measure,
        drop=drop,
        folder=out,
        recipe=recipe,
        steps=steps,
        cpu=cpu,
        report=_show,
    )
    if save_recipe is not None:
        tuned.recipe.save(save_recipe)
    print(json_format.dumps(tuned.to_dict(), indent=2) if json else tuned)
    if not tuned.met:
        raise typer.Exit(1)


def _show(trial: Trial) -> None:
    """A line for each trial as it ends: they take minutes."""
    score = trial.note if trial.score is None else f"{trial.score:.2f}"
    print(f"{trial.change}: {score} ({trial.seconds:.0f} s)", file=sys.stderr, flush=True)


def _named_metric(name: str) -> Callable[[Callable[..., Any]], float]:
    from detent.data import named_function

    return named_function(name, "a metric")

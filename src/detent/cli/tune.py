"""`detent tune`: quantize until the deployed model is as accurate as asked."""

from __future__ import annotations

import json as json_format
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from detent.cli.asking import Cpu
from detent.cli.fixing import Set, Size, parse_sizes, parse_values
from detent.cli.guarding import go_on_in_child
from detent.cli.interrupting import nothing_written, on_interrupt
from detent.cli.paths import require_data, require_path, require_recipe
from detent.cli.reading import Crop, Layout, Mean, Resize, Std, batches_of, preprocessing

if TYPE_CHECKING:
    from detent.tuning import Trial

__all__ = ["tune"]


@on_interrupt(nothing_written)
def tune(
    model: Annotated[Path, typer.Argument(help="An ONNX file.", callback=require_path)],
    backend: Annotated[str, typer.Option(help="The target; `detent backends` lists them.")],
    data: Annotated[
        str,
        typer.Option(
            help="Calibration data: .npy, .npz, a folder of these or of images, or file.py:function.",
            callback=require_data,
        ),
    ],
    out: Annotated[Path, typer.Option("--out", "-o", help="The folder to write.")],
    drop: Annotated[float, typer.Option(min=0, help="The most that may be lost of the metric; points of accuracy.")],
    validation: Annotated[
        str | None, typer.Option(help="What the metric is measured on, with labels; as --data.", show_default="--data")
    ] = None,
    metric: Annotated[
        str, typer.Option(help="'accuracy', or file.py:function: of a network that runs; greater is better.")
    ] = "accuracy",
    recipe: Annotated[
        str, typer.Option(help="The recipe to begin with: a name, or a file.", callback=require_recipe)
    ] = "ptq",
    save_recipe: Annotated[
        Path | None, typer.Option(help="Write the recipe that was found: .yaml, .json or .toml.")
    ] = None,
    cpu: Cpu = None,
    steps: Annotated[int, typer.Option(min=1, max=512, help="At most so many batches calibrate.")] = 64,
    batch_size: Annotated[
        int | None, typer.Option(min=1, help="Samples in a batch that is read from files.", show_default="8")
    ] = None,
    size: Size = None,
    values: Set = None,
    resize: Resize = None,
    crop: Crop = None,
    mean: Mean = None,
    std: Std = None,
    layout: Layout = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON for a program to read.")] = False,
) -> None:
    """Quantize an ONNX model, and change the recipe until the engine loses no more than --drop; exit code 1 if it does.

    What costs the device nothing is tried first; then more bits, and at last float, for as few operations as will do.

    Example: detent tune model.onnx --backend openvino --data calib/ --validation val.npz --drop 0.5 -o out/
    """
    if validation is not None:
        require_data(validation)
    go_on_in_child(f"tune {model}")
    from detent.frontends.onnx import ports_of, types_of
    from detent.loading import load
    from detent.quantizing import BATCH_SIZE
    from detent.tuning import accuracy
    from detent.tuning import tune as run

    network = load(model, sizes=parse_sizes(size), values=parse_values(values))
    ports = ports_of(network)
    how = preprocessing(resize, crop, mean, std, layout, ports)

    def read(where: str) -> Iterable[Any]:
        return batches_of(where, ports, types_of(network), batch_size=batch_size, usual_size=BATCH_SIZE, how=how)

    measure = accuracy(read(validation or data)) if metric == "accuracy" else _named_metric(metric)
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

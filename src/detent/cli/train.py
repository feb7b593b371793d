"""`detent train`: train, evaluate, deploy and verify what a config file says."""

from __future__ import annotations

import json as json_format
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from detent.cli.allow_imports import AllowImports
from detent.cli.interrupts import nothing_written, on_interrupt
from detent.cli.options import AsJson
from detent.cli.paths import require_path

if TYPE_CHECKING:
    from detent.training.session import Outcome

__all__ = ["show_outcome", "train"]


@on_interrupt(nothing_written)
def train(
    config: Annotated[
        Path,
        typer.Argument(
            help="A .yaml, .json or .toml file; examples/configs in the source tree has some.", callback=require_path
        ),
    ],
    overrides: Annotated[
        list[str] | None,
        typer.Argument(metavar="[KEY=VALUE]...", help="Override values of the config: optimizer.lr=0.01"),
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="The folder of the run; by default runs/NAME.")
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue from the last checkpoint of the folder.")] = False,
    data: Annotated[
        Path | None, typer.Option(help="The folder of the data set; overrides the config.", callback=require_path)
    ] = None,
    pretrained: Annotated[
        Path | None,
        typer.Option(
            help="A file of float weights (torchvision, timm or ours); overrides the config.", callback=require_path
        ),
    ] = None,
    epochs: Annotated[int | None, typer.Option(min=1, help="Number of epochs; overrides the config.")] = None,
    allow_imports: AllowImports = False,
    json: AsJson = False,
) -> None:
    """Train as a config file says, compare with the float model, deploy, and verify the deployed model.

    Several processes: torchrun --nproc-per-node 2 -m detent train config.yaml

    Example: detent train examples/configs/lsq_openvino.yaml optimizer.lr=0.001 --data data/cifar10 -o runs/lsq
    """
    from detent.training.config_files import load_config
    from detent.training.session import train as run

    asked = load_config(config, overrides=overrides or (), allow_imports=allow_imports)
    asked = asked.with_changes("data", folder=None if data is None else str(data.resolve()))
    asked = asked.with_changes("model", pretrained=None if pretrained is None else str(pretrained.resolve()))
    asked = asked.with_changes("train", epochs=epochs)
    folder = out or Path("runs") / asked.name
    with on_interrupt(lambda: _what_is_kept(folder)):
        outcome = run(asked, folder, resume=resume, allow_imports=allow_imports)
    if outcome is not None:
        show_outcome(outcome, json=json)


def _what_is_kept(folder: Path) -> str:
    from detent.training.run import LAST

    command = [word for word in sys.argv[1:] if word != "--resume"]
    if not (folder / LAST).exists():
        return f"there is no checkpoint yet; start again: {shlex.join(['detent', *command])}"
    return f"the last checkpoint is {folder / LAST}; to continue: {shlex.join(['detent', *command, '--resume'])}"


def show_outcome(outcome: Outcome, *, json: bool) -> None:
    """Print what came of it; exit code 1 if the deployed model is not what was simulated."""
    if json:
        print(json_format.dumps(outcome.to_dict(), indent=2))
    else:
        for name, value in outcome.metrics.items():
            share = name == "agreement" or name.endswith(".top1")
            print(f"{name}: {100 * value:.2f} %" if share else f"{name}: {value:.4f}")
        if outcome.artifact is not None:
            print(f"{outcome.artifact.folder}: {', '.join(sorted(outcome.artifact.manifest['files']))}")
        if outcome.verdict is not None:
            print(outcome.verdict)
    for note in outcome.notes:
        print(f"note: {note}", file=sys.stderr)
    if outcome.verdict is not None and not outcome.verdict.holds:
        raise typer.Exit(1)

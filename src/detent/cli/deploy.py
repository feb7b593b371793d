"""`detent deploy`: the model of a checkpoint, for its target."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from detent.cli.allow_imports import AllowImports
from detent.cli.interrupts import nothing_written, on_interrupt
from detent.cli.options import AsJson, OutFolder
from detent.cli.paths import require_path

__all__ = ["deploy"]


@on_interrupt(nothing_written)
def deploy(
    checkpoint: Annotated[Path, typer.Option(help="A checkpoint that `detent train` wrote.", callback=require_path)],
    config: Annotated[Path, typer.Option(help="The config it was trained with.", callback=require_path)],
    out: OutFolder,
    data: Annotated[
        Path | None, typer.Option(help="The folder of the data set; overrides the config.", callback=require_path)
    ] = None,
    allow_imports: AllowImports = False,
    json: AsJson = False,
) -> None:
    """Deploy a checkpoint and verify it; exit code 1 if the engine does not compute what was simulated.

    Example: detent deploy --checkpoint runs/lsq/best.safetensors --config runs/lsq/config.yaml -o out/
    """
    from detent.cli.train import show_outcome
    from detent.training.config_files import load_config
    from detent.training.session import deploy_checkpoint

    asked = load_config(config, allow_imports=allow_imports).with_changes(
        "data", folder=None if data is None else str(data.resolve())
    )
    show_outcome(deploy_checkpoint(asked, checkpoint, out, allow_imports=allow_imports), json=json)

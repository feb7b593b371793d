"""`detent retarget`: what was calibrated for one target, deployed for another."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer

from detent.cli.artifact_output import show_artifact
from detent.cli.crash_guard import go_on_in_child
from detent.cli.interrupts import nothing_written, on_interrupt
from detent.cli.names import require_backend
from detent.cli.options import AsJson, DeployedFolder

__all__ = ["retarget"]


@on_interrupt(nothing_written)
def retarget(
    folder: DeployedFolder,
    backend: Annotated[
        str, typer.Option(help="The new target; `detent backends` lists them.", callback=require_backend)
    ],
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="The folder to write.", show_default="FOLDER-BACKEND")
    ] = None,
    json: AsJson = False,
) -> None:
    """Deploy the weights and scales of a deployed model for another target, without calibrating again.

    If the other target cannot store a tensor, the command fails and names it.

    Example: detent retarget out/ --backend litert -o out-litert/
    """
    go_on_in_child(f"retarget {folder}")
    from detent.artifact import Artifact

    artifact = Artifact.load(folder).retarget(backend, out)
    show_artifact(artifact, json=json)
    if not json:
        print("next:", shlex.join(["detent", "verify", str(artifact.folder), "--data", "DATA"]))

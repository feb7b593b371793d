"""`detent verify`: simulation, twin and engine side by side."""

from __future__ import annotations

import json as json_format
from typing import Annotated

import typer

from detent.cli.crash_guard import go_on_in_child
from detent.cli.image_options import Crop, Layout, Mean, Resize, Std, batches_of, preprocessing
from detent.cli.interrupts import nothing_written, on_interrupt
from detent.cli.names import require_cpus
from detent.cli.options import AsJson, BatchSizeToCheck, DeployedFolder
from detent.cli.paths import require_data

__all__ = ["verify"]

_BATCH_SIZE = 32


@on_interrupt(nothing_written)
def verify(
    folder: DeployedFolder,
    data: Annotated[
        str,
        typer.Option(
            help=".npy, .npz, a folder of these or of images (`labels` in a .npz are used), or file.py:function.",
            callback=require_data,
        ),
    ],
    engine: Annotated[str | None, typer.Option(help="The engine to run instead of the backend's own.")] = None,
    arithmetic: Annotated[str | None, typer.Option(help="The arithmetic of the twin instead of the engine's.")] = None,
    cpu: Annotated[
        list[str] | None,
        typer.Option(
            help="Predict what this kind of CPU computes: avx2, vnni, arm64 ...; may be repeated.",
            callback=require_cpus,
        ),
    ] = None,
    batches: Annotated[int, typer.Option(min=1, help="Use at most this many batches.")] = 8,
    batch_size: BatchSizeToCheck = None,
    resize: Resize = None,
    crop: Crop = None,
    mean: Mean = None,
    std: Std = None,
    layout: Layout = None,
    tensors: Annotated[bool, typer.Option(help="Compare intermediate tensors too.")] = True,
    latency: Annotated[bool, typer.Option(help="Measure latency against the float model.")] = True,
    json: AsJson = False,
) -> None:
    """Check that the engine computes what was simulated; exit code 1 if it does not.

    Images need --crop; they are resized, cropped and normalized as (pixel / 255 - mean) / std.

    Example: detent verify out/ --data test.npz
    """
    how = preprocessing(resize, crop, mean, std, layout)
    isolated = go_on_in_child(f"verify {folder}")
    from detent.artifact import Artifact
    from detent.progress import AtMost

    artifact = Artifact.load(folder)
    shapes = {name: port.shape for name, port in artifact.graph.inputs.items()}
    types = {name: port.dtype for name, port in artifact.graph.inputs.items()}
    found = batches_of(data, shapes, types, batch_size=batch_size, usual_size=_BATCH_SIZE, how=how)
    verdict = artifact.verify(
        AtMost(found, batches),
        isolate=False if isolated else None,  # one child is enough
        engine=engine,
        arithmetic=arithmetic,
        tensors=tensors,
        latency=latency,
        cpus=cpu or (),
    )
    print(json_format.dumps(verdict.to_dict(), indent=2) if json else verdict)
    if not verdict.holds:
        raise typer.Exit(1)

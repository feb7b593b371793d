"""`detent quantize`: an ONNX file, calibration data and a target in; a deployed model out."""

from __future__ import annotations

import json as json_format
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from detent.cli.excluding import without

__all__ = ["quantize"]


def quantize(
    model: Annotated[Path, typer.Argument(help="An ONNX file.")],
    backend: Annotated[str, typer.Option(help="The target; `detent backends` lists them.")],
    data: Annotated[Path, typer.Option(help="Calibration data: .npy, .npz, or a folder of these or of images.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="The folder to write.")],
    recipe: Annotated[str, typer.Option(help="The name of a recipe, or a file.")] = "ptq",
    exclude: Annotated[list[str] | None, typer.Option(help="Keep float: a name glob or a kind; repeatable.")] = None,
    steps: Annotated[int, typer.Option(min=1, max=512, help="At most so many batches calibrate.")] = 64,
    batch_size: Annotated[int, typer.Option(min=1, help="Samples in a batch.")] = 8,
    resize: Annotated[int | None, typer.Option(help="Images: length of the shorter side.")] = None,
    crop: Annotated[int | None, typer.Option(help="Images: side of the square cut from the middle.")] = None,
    mean: Annotated[str, typer.Option(help="Images: of pixels / 255, for each channel.")] = "0.485,0.456,0.406",
    std: Annotated[str, typer.Option(help="Images: of pixels / 255, for each channel.")] = "0.229,0.224,0.225",
    json: Annotated[bool, typer.Option("--json", help="Print JSON for a program to read.")] = False,
) -> None:
    """Quantize an ONNX model and deploy it.

    Images are resized, cut, and normalised as (pixel / 255 - mean) / std; say --crop for them.

    Example: detent quantize model.onnx --backend onnxruntime --data calib/ -o out/
    """
    from detent.data import Folder, Preprocessing
    from detent.onnx_import import load, ports_of
    from detent.quantizing import quantize as run
    from detent.recipes import find

    network = load(model)
    ports = ports_of(network)
    how = None
    if crop is not None:
        how = Preprocessing(resize=resize, crop=(crop, crop), mean=_numbers(mean), std=_numbers(std))
    batches = Folder(data, ports, batch_size=batch_size, preprocessing=how)
    request = without(find(recipe), exclude or ())
    artifact = run(network, _shown(batches, steps), backend=backend, recipe=request, folder=out, steps=steps)
    if json:
        told = {"folder": str(artifact.folder), "files": sorted(artifact.manifest["files"]), "backend": backend}
        print(json_format.dumps({**told, "notes": artifact.manifest["notes"]}, indent=2))
        return
    quantized = len(artifact.manifest["tensors"])
    print(f"{artifact.folder}: {', '.join(sorted(artifact.manifest['files']))}; {quantized} tensors quantized")
    for note in artifact.manifest["notes"]:
        print(f"note: {note}")
    print(f"next: detent verify {artifact.folder} --data {data}")


def _shown(batches: Any, steps: int) -> Iterator[Any]:
    """The batches, with a progress bar on a terminal."""
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(file=sys.stderr), transient=True) as progress:
        task = progress.add_task("calibrating", total=steps)
        for batch in batches:
            yield batch
            progress.advance(task)


def _numbers(text: str) -> tuple[float, ...]:
    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError:
        raise typer.BadParameter(f"{text!r} is no list of numbers such as 0.5,0.5,0.5") from None

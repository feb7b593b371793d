"""`detent quantize`: an ONNX file, calibration data and a target in; a deployed model out."""

from __future__ import annotations

import json as json_format
import shlex
from pathlib import Path
from typing import Annotated

import typer

from detent.cli.excluding import without
from detent.cli.reading import (
    IMAGENET_MEAN,
    IMAGENET_STD,
    Crop,
    Mean,
    Resize,
    Std,
    batches_of,
    preprocessing,
    with_bar,
)

__all__ = ["quantize"]


def quantize(
    model: Annotated[Path, typer.Argument(help="An ONNX file.")],
    backend: Annotated[str, typer.Option(help="The target; `detent backends` lists them.")],
    data: Annotated[
        str, typer.Option(help="Calibration data: .npy, .npz, a folder of these or of images, or file.py:function.")
    ],
    out: Annotated[Path, typer.Option("--out", "-o", help="The folder to write.")],
    recipe: Annotated[str, typer.Option(help="The name of a recipe, or a file.")] = "ptq",
    exclude: Annotated[
        list[str] | None, typer.Option(help="Keep float: a node's name (a glob) or type, or a kind; may be repeated.")
    ] = None,
    steps: Annotated[int, typer.Option(min=1, max=512, help="At most so many batches calibrate.")] = 64,
    batch_size: Annotated[int, typer.Option(min=1, help="Samples in a batch.")] = 8,
    resize: Resize = None,
    crop: Crop = None,
    mean: Mean = IMAGENET_MEAN,
    std: Std = IMAGENET_STD,
    json: Annotated[bool, typer.Option("--json", help="Print JSON for a program to read.")] = False,
) -> None:
    """Quantize an ONNX model and deploy it.

    Images are resized, cut, and normalised as (pixel / 255 - mean) / std; say --crop for them.

    Example: detent quantize model.onnx --backend onnxruntime --data calib/ -o out/
    """
    from detent.onnx_import import load, ports_of, types_of
    from detent.quantizing import quantize as run
    from detent.recipes import find

    network = load(model)
    ports = ports_of(network)
    how = preprocessing(resize, crop, mean, std)
    batches = batches_of(data, ports, types_of(network), batch_size=batch_size, how=how)
    request = without(find(recipe), exclude or ())
    with with_bar(batches, "calibrating", steps) as shown:
        artifact = run(network, shown, backend=backend, recipe=request, folder=out, steps=steps, inplace=True)
    if json:
        told = {"folder": str(artifact.folder), "files": sorted(artifact.manifest["files"]), "backend": backend}
        print(json_format.dumps({**told, "notes": artifact.manifest["notes"]}, indent=2))
        return
    quantized = len(artifact.manifest["tensors"])
    print(f"{artifact.folder}: {', '.join(sorted(artifact.manifest['files']))}; {quantized} tensors quantized")
    for note in artifact.manifest["notes"]:
        print(f"note: {note}")
    asked = {"resize": resize, "crop": crop, "mean": mean, "std": std} if how else {}
    options = [part for name, value in asked.items() if value is not None for part in (f"--{name}", str(value))]
    print("next:", shlex.join(["detent", "verify", str(artifact.folder), "--data", data, *options]))

"""`detent quantize`: an ONNX file, calibration data and a target in; a deployed model out."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer

from detent.cli.excluding import without
from detent.cli.fixing import Set, Size, parse_sizes, parse_values
from detent.cli.guarding import go_on_in_child
from detent.cli.reading import Crop, Layout, Mean, Resize, Std, batches_of, preprocessing, with_bar
from detent.cli.showing import show_artifact

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
    cpu: Annotated[
        str | None,
        typer.Option(help="The kind of CPU it will run on: 'vnni' keeps 8-bit weights whole.", show_default="any"),
    ] = None,
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
    max_tensor_bytes: Annotated[
        int, typer.Option(min=1, help="Refuse a network that makes a larger tensor, before it runs.")
    ] = 4 * 2**30,
    json: Annotated[bool, typer.Option("--json", help="Print JSON for a program to read.")] = False,
) -> None:
    """Quantize an ONNX model and deploy it.

    Images are resized, cut, and normalized as (pixel / 255 - mean) / std; say --crop for them.

    Example: detent quantize model.onnx --backend onnxruntime --data calib/ -o out/
    """
    go_on_in_child(f"quantize {model}")
    from detent.frontends.onnx import ports_of, types_of
    from detent.loading import load
    from detent.quantizing import BATCH_SIZE
    from detent.quantizing import quantize as run
    from detent.recipes import find

    network = load(model, sizes=parse_sizes(size), values=parse_values(values))
    ports = ports_of(network)
    how = preprocessing(resize, crop, mean, std, layout, ports)
    batches = batches_of(data, ports, types_of(network), batch_size=batch_size, usual_size=BATCH_SIZE, how=how)
    request = without(find(recipe), exclude or ())
    with with_bar(batches, "calibrating", steps) as shown:
        artifact = run(
            network,
            shown,
            backend=backend,
            recipe=request,
            folder=out,
            steps=steps,
            cpu=cpu,
            max_tensor_bytes=max_tensor_bytes,
            inplace=True,
        )
    show_artifact(artifact, json=json)
    if json:
        return
    asked = {"resize": resize, "crop": crop, "mean": mean, "std": std, "layout": layout}
    options = [part for name, value in asked.items() if value is not None for part in (f"--{name}", str(value))]
    print("next:", shlex.join(["detent", "verify", str(artifact.folder), "--data", data, *options]))

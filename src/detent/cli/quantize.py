"""`detent quantize`: an ONNX file, calibration data and a target in; a deployed model out."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer

from detent.cli.asking import MOST_BYTES, Cpu, Exclude, MaxTensorBytes
from detent.cli.excluding import without
from detent.cli.fixing import Set, Size, parse_sizes, parse_values
from detent.cli.guarding import go_on_in_child
from detent.cli.interrupting import nothing_written, on_interrupt
from detent.cli.paths import require_data, require_path, require_recipe
from detent.cli.reading import Crop, Layout, Mean, Resize, Std, batches_of, preprocessing
from detent.cli.showing import show_artifact

__all__ = ["quantize"]


@on_interrupt(nothing_written)
def quantize(
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
    recipe: Annotated[
        str, typer.Option(help="A file, or a name that `detent recipes` lists.", callback=require_recipe)
    ] = "ptq",
    exclude: Exclude = None,
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
    max_tensor_bytes: MaxTensorBytes = MOST_BYTES,
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
    artifact = run(
        network,
        batches,
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

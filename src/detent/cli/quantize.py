"""`detent quantize`: an ONNX file, calibration data and a target in; a deployed model out."""

from __future__ import annotations

import shlex

from detent.cli.asking import (
    MOST_BYTES,
    AsJson,
    Backend,
    BatchSize,
    CalibrationData,
    Cpu,
    Exclude,
    MaxTensorBytes,
    OnnxFile,
    OutFolder,
    RecipeName,
    Steps,
)
from detent.cli.excluding import without
from detent.cli.fixing import Set, Size, parse_sizes, parse_values
from detent.cli.guarding import go_on_in_child
from detent.cli.interrupting import nothing_written, on_interrupt
from detent.cli.reading import Crop, Layout, Mean, Resize, Std, batches_of, preprocessing
from detent.cli.showing import show_artifact

__all__ = ["quantize"]


@on_interrupt(nothing_written)
def quantize(
    model: OnnxFile,
    backend: Backend,
    data: CalibrationData,
    out: OutFolder,
    recipe: RecipeName = "ptq",
    exclude: Exclude = None,
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
    max_tensor_bytes: MaxTensorBytes = MOST_BYTES,
    json: AsJson = False,
) -> None:
    """Quantize an ONNX model and deploy it.

    Images need --crop; they are resized, cropped and normalized as (pixel / 255 - mean) / std.

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

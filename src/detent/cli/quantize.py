"""`detent quantize`: an ONNX file or a Hugging Face folder, calibration data and a target in; a deployed model out."""

from __future__ import annotations

import json as json_format
import shlex
from collections.abc import Mapping
from enum import StrEnum
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from detent.cli.artifact_output import show_artifact
from detent.cli.crash_guard import go_on_in_child
from detent.cli.exclude import without
from detent.cli.image_options import Crop, Layout, Mean, Resize, Std, batches_of, preprocessing
from detent.cli.input_options import Set, Size, parse_sizes, parse_values
from detent.cli.interrupts import nothing_written, on_interrupt
from detent.cli.options import (
    MOST_BYTES,
    AsJson,
    Backend,
    BatchSize,
    Cpu,
    Exclude,
    MaxTensorBytes,
    OptionalCalibrationData,
    OutFolder,
    RecipeName,
    Steps,
)
from detent.cli.paths import require_onnx
from detent.errors import DataError

if TYPE_CHECKING:
    from detent.data.arrays import Inputs, Types
    from detent.recipes import Recipe

__all__ = ["quantize"]


class Preference(StrEnum):
    ACCURACY = "accuracy"
    SPEED = "speed"


_LENGTH = 64
"""Words in a sequence of a language model that is deployed without data."""


@on_interrupt(nothing_written)
def quantize(
    model: Annotated[
        Path, typer.Argument(help="An ONNX file, or a folder that save_pretrained wrote.", callback=require_onnx)
    ],
    backend: Backend,
    out: OutFolder,
    data: OptionalCalibrationData = None,
    recipe: RecipeName = "ptq",
    exclude: Exclude = None,
    cpu: Cpu = None,
    prefer: Annotated[
        Preference,
        typer.Option(help="With speed, layers that the engine runs faster in float, on this machine, stay float."),
    ] = Preference.ACCURACY,
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
    layer_by_layer: Annotated[
        bool | None,
        typer.Option(
            "--layer-by-layer/--whole",
            help="Read a Hugging Face folder a layer at a time, in little memory; a run that is killed goes on.",
            show_default="where the target and the recipe can",
        ),
    ] = None,
    report: Annotated[bool, typer.Option("--report", help="Also write report.html, measured on --data.")] = False,
    json: AsJson = False,
) -> None:
    """Quantize an ONNX model and deploy it.

    Images need --crop; they are resized, cropped and normalized as (pixel / 255 - mean) / std.

    The data for a Hugging Face folder is `ids` and `mask`. Recipes that only round weights need no data. Where the
    target can take it, such a model is read a layer at a time; --whole deploys it as one network.

    Example: detent quantize model.onnx --backend onnxruntime --data calib/ -o out/
    """
    how = preprocessing(resize, crop, mean, std, layout)
    go_on_in_child(f"quantize {model}")
    from detent.quantizing import BATCH_SIZE
    from detent.quantizing import quantize as run
    from detent.recipes import find

    request = without(find(recipe), exclude or ())
    if _goes_by_layers(
        layer_by_layer,
        model,
        backend,
        request,
        whole={"--report": report, "--cpu": cpu, "--prefer speed": prefer is Preference.SPEED},
    ):
        batches = _of_words(data, steps, batch_size, size, values, how)
        _by_layers(model, batches, backend, request, out, json=json)
        return
    network, ports, types = _load(model, size, values)

    def given() -> Any:
        if data is None:
            return _without_data(network, request)
        return batches_of(data, ports, types, batch_size=batch_size, usual_size=BATCH_SIZE, how=how)

    artifact = run(
        network,
        given(),
        backend=backend,
        recipe=request,
        folder=out,
        steps=steps,
        cpu=cpu,
        prefer=prefer.value,
        max_tensor_bytes=max_tensor_bytes,
        inplace=True,
    )
    if report:
        page = artifact.report(data=None if data is None else given())
    show_artifact(artifact, json=json)
    if json:
        return
    if report:
        print(page)
    if data is None:
        return
    asked = {"resize": resize, "crop": crop, "mean": mean, "std": std, "layout": layout}
    options = [part for name, value in asked.items() if value is not None for part in (f"--{name}", str(value))]
    print("next:", shlex.join(["detent", "verify", str(artifact.folder), "--data", data, *options]))


def _load(model: Path, size: list[str] | None, values: list[str] | None) -> tuple[Any, Inputs, Types]:
    """The network, and the shapes and types of its inputs."""
    if not model.is_dir():
        from detent.frontends.onnx import ports_of, types_of
        from detent.loading import load

        network = load(model, sizes=parse_sizes(size), values=parse_values(values))
        return network, ports_of(network), types_of(network)
    from detent.frontends.hugging_face import load_checkpoint

    _refuse_sizes(size, values)
    return load_checkpoint(model), *_WORDS


_WORDS: tuple[Inputs, Types] = (
    dict.fromkeys(("ids", "mask"), ("batch", "length")),
    dict.fromkeys(("ids", "mask"), "int64"),
)
"""What a language model takes in."""


def _refuse_sizes(size: list[str] | None, values: list[str] | None) -> None:
    if size or values:
        given = "--size" if size else "--set"
        found = "it is for ONNX files only"
        raise DataError(f"{given} with a Hugging Face folder", found, "leave it out: the data sets the length")


def _goes_by_layers(
    asked: bool | None, model: Path, backend: str, recipe: Recipe, *, whole: Mapping[str, object]
) -> bool:
    """Whether the model is read a layer at a time: as asked, or else where that is possible. `whole` are options that
    need all of it."""
    needed = [option for option, value in whole.items() if value]
    if asked and (needed or not model.is_dir()):
        what = needed[0] if needed else "an ONNX file"
        found = f"{what} needs the whole model" if needed else "it has no layers to be read one by one"
        raise DataError(f"--layer-by-layer with {what}", found, "leave out one of the two")
    if asked is not None or needed or not model.is_dir():
        return bool(asked)
    from detent.frontends.hugging_face import named_class
    from detent.layerwise import why_not

    return why_not(backend, recipe) is None and named_class(model)[0].__name__.endswith("ForCausalLM")


def _of_words(
    data: str | None, steps: int, batch_size: int | None, size: list[str] | None, values: list[str] | None, how: Any
) -> Any:
    """The batches of a language model, at most so many; None without data."""
    from detent.quantizing import BATCH_SIZE, as_tensors

    _refuse_sizes(size, values)
    if data is None:
        return None
    return islice(as_tensors(batches_of(data, *_WORDS, batch_size=batch_size, usual_size=BATCH_SIZE, how=how)), steps)


def _by_layers(model: Path, batches: Any, backend: str, recipe: Recipe, out: Path, *, json: bool) -> None:
    from detent.layerwise import quantize_checkpoint

    with on_interrupt(lambda: "what is done stays; run the same command to go on"):
        result = quantize_checkpoint(model, batches, backend=backend, recipe=recipe, folder=out)
    print(json_format.dumps(result.to_dict(), indent=1) if json else result)


def _without_data(network: Any, recipe: Recipe) -> list[Any]:
    """One batch of words at random, for a recipe whose result does not depend on it."""
    example = getattr(network, "example", None)
    if example is None or _looks_at_data(recipe) or recipe.activation.quantize is not False:
        found = "the recipe measures ranges on it"
        raise DataError("quantize without --data", found, "give --data, or a Hugging Face folder and --recipe w4g32")
    return [example(1, _LENGTH)]


def _looks_at_data(recipe: Recipe) -> bool:
    from detent.algorithms import ALGORITHMS

    return any(ALGORITHMS[asked.name].needs_data for asked in recipe.algorithms)

"""`detent report`: a page to look at, and files for other viewers."""

from __future__ import annotations

import json as json_format
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from detent.cli.crash_guard import go_on_in_child
from detent.cli.image_options import Crop, Layout, Mean, Resize, Std, batches_of, preprocessing
from detent.cli.interrupts import nothing_written, on_interrupt
from detent.cli.options import BatchSizeToCheck
from detent.cli.paths import require_all_deployed, require_data, require_path

if TYPE_CHECKING:
    from detent.artifact import Artifact
    from detent.report import Facts

__all__ = ["report"]

_BATCH_SIZE = 32


@on_interrupt(nothing_written)
def report(
    folders: Annotated[
        list[Path],
        typer.Argument(help="A deployed folder; several are compared.", callback=require_all_deployed),
    ],
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            "-o",
            dir_okay=False,
            help="The page to write.",
            show_default="report.html: in the folder, or here for several",
        ),
    ] = None,
    data: Annotated[
        str | None,
        typer.Option(
            help=".npy, .npz, a folder of these or of images (`labels` in a .npz are used), or file.py:function.",
            callback=require_data,
        ),
    ] = None,
    float_model: Annotated[
        Path | None,
        typer.Option("--float", help="The float ONNX file, to compare with.", callback=require_path),
    ] = None,
    log: Annotated[
        Path | None, typer.Option(help="The log.csv of a training run, or its folder.", callback=require_path)
    ] = None,
    batches: Annotated[int, typer.Option(min=1, help="Use at most this many batches.")] = 8,
    batch_size: BatchSizeToCheck = None,
    resize: Resize = None,
    crop: Crop = None,
    mean: Mean = None,
    std: Std = None,
    layout: Layout = None,
    latency: Annotated[bool, typer.Option(help="Measure latency against the float model.")] = True,
    model_explorer: Annotated[
        Path | None,
        typer.Option(dir_okay=False, help="Write node data for Model Explorer: nodes.json -> nodes.bits.json, ..."),
    ] = None,
    annotate: Annotated[
        bool, typer.Option("--annotate", help="Write model.annotated.onnx, in which Netron shows the figures.")
    ] = False,
    card: Annotated[bool, typer.Option("--card", help="Write a model card, README.md, into the folder.")] = False,
) -> None:
    """Write an HTML page about a deployed model: accuracy, error by layer, latency. It needs no network.

    With several folders the page compares them.

    Images need --crop; they are resized, cropped and normalized as (pixel / 255 - mean) / std.

    Example: detent report out/ --data test.npz
    """
    _require_fit(
        {"--log": log, "--model-explorer": model_explorer, "--annotate": annotate or None, "--card": card or None}
        if len(folders) > 1
        else {},
        "only for one folder: give one",
    )
    of_data = {"--float": float_model, "--batch-size": batch_size, "--crop": crop, "--resize": resize, "--mean": mean}
    _require_fit({} if data else {**of_data, "--std": std, "--layout": layout}, "only used with --data: give it too")
    how = preprocessing(resize, crop, mean, std, layout)
    go_on_in_child(f"report on {', '.join(map(str, folders))}")
    from detent.artifact import Artifact
    from detent.files import write_bytes
    from detent.progress import AtMost
    from detent.report import annotated_model, collect, comparison_of, model_card, node_data, page_of, write_page

    def facts_of(artifact: Artifact) -> Facts:
        if data is None:
            return collect(artifact, log=log)
        shapes = {name: port.shape for name, port in artifact.graph.inputs.items()}
        types = {name: port.dtype for name, port in artifact.graph.inputs.items()}
        found = batches_of(data, shapes, types, batch_size=batch_size, usual_size=_BATCH_SIZE, how=how)
        given = AtMost(found, batches)
        return collect(artifact, data=given, float_model=float_model, log=log, batches=batches, latency=latency)

    artifacts: list[Artifact] = [Artifact.load(folder) for folder in folders]
    facts = [facts_of(artifact) for artifact in artifacts]
    if len(facts) > 1:
        print(write_page(comparison_of(facts), out or Path("report.html")))
        return
    (artifact,), (one,) = artifacts, facts
    print(write_page(page_of(one), out or artifact.folder / "report.html"))
    if card:
        write_bytes(artifact.folder / "README.md", model_card(one).encode())
        print(artifact.folder / "README.md")
    if annotate:
        write_bytes(artifact.folder / "model.annotated.onnx", annotated_model(artifact, one))
        print(artifact.folder / "model.annotated.onnx")
    if model_explorer is not None:
        for name, content in node_data(one).items():
            path = model_explorer.with_suffix(f".{name}.json")
            write_bytes(path, json_format.dumps(content, indent=1).encode())
            print(path)


def _require_fit(options: dict[str, object], why: str) -> None:
    given = [name for name, value in options.items() if value is not None]
    if given:
        raise typer.BadParameter(f"{', '.join(given)}: {why}")

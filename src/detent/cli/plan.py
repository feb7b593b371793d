"""`detent plan`: what would be quantized, how, and why not, before anything is done."""

from __future__ import annotations

import json as json_format
from pathlib import Path
from typing import Annotated

import typer

from detent.cli.excluding import without

__all__ = ["plan"]


def plan(
    model: Annotated[Path, typer.Argument(help="An ONNX file.")],
    backend: Annotated[str, typer.Option(help="The target; `detent backends` lists them.")],
    recipe: Annotated[str, typer.Option(help="The name of a recipe, or a file.")] = "ptq",
    exclude: Annotated[
        list[str] | None, typer.Option(help="Keep float: a node's name (a glob) or type, or a kind; may be repeated.")
    ] = None,
    cpu: Annotated[
        str | None,
        typer.Option(help="The kind of CPU it will run on: 'vnni' keeps 8-bit weights whole.", show_default="any"),
    ] = None,
    size: Annotated[int, typer.Option(min=1, help="Stands in for sizes that the file leaves free.")] = 1,
    json: Annotated[bool, typer.Option("--json", help="Print JSON for a program to read.")] = False,
) -> None:
    """Print the plan of an ONNX model: each tensor, its scheme, or why it is float; then how each operation runs.

    Example: detent plan model.onnx --backend tensorrt --exclude '/head/*' --exclude Softmax
    """
    from detent.frontends.onnx import example_inputs
    from detent.loading import load
    from detent.preparing import prepare
    from detent.recipes import find

    network, request = load(model), find(recipe)
    request = without(request, exclude or ())
    prepared = prepare(network, example_inputs(network, free=size), backend=backend, recipe=request, cpu=cpu)
    if json:
        print(json_format.dumps(prepared.plan.to_dict(), indent=2))
    else:
        print(prepared.plan, prepared.plan.dispatch(), sep="\n\n")

"""Options of commands that plan an ONNX file: what stays float, for which CPU, and how large a tensor may be."""

from __future__ import annotations

from typing import Annotated

import typer

__all__ = ["MOST_BYTES", "Cpu", "Exclude", "MaxTensorBytes"]

Exclude = Annotated[
    list[str] | None, typer.Option(help="Keep float: a node's name (a glob) or type, or a kind; may be repeated.")
]
Cpu = Annotated[
    str | None,
    typer.Option(help="The kind of CPU it will run on: 'vnni' keeps 8-bit weights whole.", show_default="any"),
]
MaxTensorBytes = Annotated[
    int, typer.Option(min=1, help="Refuse a network that makes a larger tensor, before it runs.")
]
MOST_BYTES = 4 * 2**30

"""The option --allow-imports of the commands that read a config."""

from __future__ import annotations

from typing import Annotated

import typer

__all__ = ["AllowImports"]

AllowImports = Annotated[
    bool,
    typer.Option(
        "--allow-imports", help="Import what the config names as package.module:Name: this executes that code."
    ),
]

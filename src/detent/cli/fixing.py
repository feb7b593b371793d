"""What a user fixes of a file's inputs: `--size width=320`, `--set sr=16000`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import typer

__all__ = ["Set", "Size", "parse_sizes", "parse_values"]

Size = Annotated[
    list[str] | None, typer.Option(metavar="NAME=SIZE", help="Fix a size that the file leaves free; may be repeated.")
]
Set = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="NAME=NUMBER", help="Fix an input of one number, as sr=16000; may be repeated."),
]


def parse_sizes(given: Sequence[str] | None) -> dict[str, int]:
    """
    >>> parse_sizes(["width=320"])
    {'width': 320}
    """
    found = _pairs("--size", given)
    wrong = [f"{name}={value}" for name, value in found.items() if not value.isdecimal() or int(value) < 1]
    if wrong:
        raise typer.BadParameter(f"--size {wrong[0]}: a size is a whole number, 1 or more")
    return {name: int(value) for name, value in found.items()}


def parse_values(given: Sequence[str] | None) -> dict[str, float]:
    """
    >>> parse_values(["sr=16000"])
    {'sr': 16000.0}
    """
    found = _pairs("--set", given)
    try:
        return {name: float(value) for name, value in found.items()}
    except ValueError:
        raise typer.BadParameter(f"--set {' '.join(given or ())}: give numbers, as sr=16000") from None


def _pairs(option: str, given: Sequence[str] | None) -> dict[str, str]:
    parts = [text.rpartition("=") for text in given or ()]
    if any(not name for name, _, _ in parts):
        raise typer.BadParameter(f"{option} {' '.join(given or ())}: give a name and a number, as width=320")
    return {name: value for name, _, value in parts}

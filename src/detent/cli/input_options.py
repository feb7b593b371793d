"""What a user fixes of a file's inputs: `--size width=320`, `--set sr=16000`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Annotated

import typer

__all__ = ["Set", "Size", "StandInSize", "parse_free_sizes", "parse_sizes", "parse_values"]


def parse_sizes(given: Sequence[str] | None) -> dict[str, int]:
    """
    >>> parse_sizes(["width=320"])
    {'width': 320}
    """
    found = _pairs(given)
    wrong = [f"{name}={value}" for name, value in found.items() if not value.isdecimal() or int(value) < 1]
    if wrong:
        raise typer.BadParameter(f"{wrong[0]}: a size is a whole number, 1 or more")
    return {name: int(value) for name, value in found.items()}


def parse_values(given: Sequence[str] | None) -> dict[str, float]:
    """
    >>> parse_values(["sr=16000"])
    {'sr': 16000.0}
    """
    found = _pairs(given)
    try:
        return {name: float(value) for name, value in found.items()}
    except ValueError:
        raise typer.BadParameter(f"{' '.join(given or ())}: give numbers, such as sr=16000") from None


def parse_free_sizes(given: Sequence[str] | None) -> tuple[dict[str, int], int]:
    """Sizes by name, and the one that stands in for all others.

    >>> parse_free_sizes(["width=320", "2"])
    ({'width': 320}, 2)
    """
    named = parse_sizes([text for text in given or () if "=" in text])
    alone = parse_sizes([f"all={text}" for text in given or () if "=" not in text])
    return named, alone.get("all", 1)


def _pairs(given: Sequence[str] | None) -> dict[str, str]:
    parts = [text.rpartition("=") for text in given or ()]
    if any(not name for name, _, _ in parts):
        raise typer.BadParameter(f"{' '.join(given or ())}: give a name and a number, such as width=320")
    return {name: value for name, _, value in parts}


def _checked(parse: Callable[[list[str]], object]) -> Callable[[list[str] | None], list[str] | None]:
    """Returns what is given, unchanged, after a check that it can be parsed: before anything is loaded."""

    def check(given: list[str] | None) -> list[str] | None:
        parse(given or [])
        return given

    return check


Size = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME=SIZE",
        help="Fix a dynamic dimension; may be repeated.",
        callback=_checked(parse_sizes),
    ),
]
StandInSize = Annotated[
    list[str] | None,
    typer.Option(
        metavar="[NAME=]SIZE",
        help="A value for all dynamic dimensions, or for the one named.",
        show_default="1",
        callback=_checked(parse_free_sizes),
    ),
]
Set = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="NAME=NUMBER",
        help="Fix a scalar input, such as sr=16000; may be repeated.",
        callback=_checked(parse_values),
    ),
]

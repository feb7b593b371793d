"""What commands that read data share: how pictures become arrays, and a bar while batches go by."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from detent.data import Preprocessing

__all__ = ["IMAGENET_MEAN", "IMAGENET_STD", "Crop", "Mean", "Resize", "Std", "preprocessing", "with_bar"]

Resize = Annotated[int | None, typer.Option(help="Images: length of the shorter side.")]
Crop = Annotated[int | None, typer.Option(help="Images: side of the square cut from the middle.")]
Mean = Annotated[str, typer.Option(help="Images: of pixels / 255, for each channel.")]
Std = Annotated[str, typer.Option(help="Images: of pixels / 255, for each channel.")]

IMAGENET_MEAN, IMAGENET_STD = "0.485,0.456,0.406", "0.229,0.224,0.225"


def preprocessing(resize: int | None, crop: int | None, mean: str, std: str) -> Preprocessing | None:
    """None without `crop`: then data are arrays, or refused."""
    from detent.data import Preprocessing

    if crop is None:
        return None
    return Preprocessing(resize=resize, crop=(crop, crop), mean=_numbers(mean), std=_numbers(std))


def with_bar(batches: Iterable[Any], title: str, total: int) -> Iterator[Any]:
    """The batches, with a progress bar on a terminal."""
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(file=sys.stderr), transient=True) as progress:
        task = progress.add_task(title, total=total)
        for batch in batches:
            yield batch
            progress.advance(task)


def _numbers(text: str) -> tuple[float, ...]:
    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError:
        raise typer.BadParameter(f"{text!r} is no list of numbers such as 0.5,0.5,0.5") from None

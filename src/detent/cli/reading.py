"""What commands that read data share: how pictures become arrays, and a bar while batches go by."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from detent.data import Inputs, Preprocessing, Types

__all__ = ["IMAGENET_MEAN", "IMAGENET_STD", "Crop", "Mean", "Resize", "Std", "batches_of", "preprocessing", "with_bar"]

Resize = Annotated[int | None, typer.Option(min=1, help="Images: length of the shorter side.")]
Crop = Annotated[int | None, typer.Option(min=1, help="Images: side of the square cut from the middle.")]
Mean = Annotated[str, typer.Option(help="Images: of pixels / 255, for each channel.")]
Std = Annotated[str, typer.Option(help="Images: of pixels / 255, for each channel.")]

IMAGENET_MEAN, IMAGENET_STD = "0.485,0.456,0.406", "0.229,0.224,0.225"


def preprocessing(resize: int | None, crop: int | None, mean: str, std: str) -> Preprocessing | None:
    """None without `crop`: then data are arrays, or refused."""
    from detent.data import Preprocessing

    if crop is None:
        return None
    return Preprocessing(resize=resize, crop=(crop, crop), mean=_numbers(mean), std=_numbers(std))


def batches_of(
    data: str,
    inputs: Inputs,
    types: Types,
    *,
    batch_size: int,
    how: Preprocessing | None,
) -> Iterable[Any]:
    """What `--data` names: files, or `file.py:function` or `module:function`, whose result is the batches."""
    from detent.data import Folder, called

    made = called(data)
    return made if made is not None else Folder(data, inputs, batch_size=batch_size, preprocessing=how, types=types)


@contextmanager
def with_bar(batches: Iterable[Any], title: str, total: int) -> Iterator[Iterator[Any]]:
    """The batches, with a progress bar on a terminal until the block ends."""
    from rich.console import Console
    from rich.progress import Progress

    console = Console(file=sys.stderr)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task(title, total=total)

        def shown() -> Iterator[Any]:
            for batch in batches:
                yield batch
                progress.advance(task)

        yield shown()


def _numbers(text: str) -> tuple[float, ...]:
    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError:
        raise typer.BadParameter(f"{text!r} is no list of numbers such as 0.5,0.5,0.5") from None

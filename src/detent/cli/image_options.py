"""What commands that read data share: how pictures become arrays."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from detent.data import Inputs, Preprocessing, Types

__all__ = ["Crop", "Layout", "Mean", "Resize", "Std", "batches_of", "preprocessing"]

_MEAN, _STD = "0.485,0.456,0.406", "0.229,0.224,0.225"  # ImageNet's

Resize = Annotated[int | None, typer.Option(min=1, help="Images: resize the shorter side to this length.")]
Crop = Annotated[int | None, typer.Option(min=1, help="Images: side of the center crop.")]
Mean = Annotated[
    str | None, typer.Option(help="Images: mean of pixels / 255, per channel.", show_default=f"ImageNet's, {_MEAN}")
]
Std = Annotated[
    str | None,
    typer.Option(help="Images: standard deviation of pixels / 255, per channel.", show_default=f"ImageNet's, {_STD}"),
]


Layout = Annotated[
    str | None,
    typer.Option(help="Images: 'nchw', or 'nhwc' (channels last).", show_default="from the input shape"),
]


def preprocessing(
    resize: int | None, crop: int | None, mean: str | None, std: str | None, layout: str | None
) -> Callable[[Inputs], Preprocessing | None]:
    """What the options say, checked, as a function of the network's inputs. Its result is None without `crop`: then
    data are arrays, or refused."""
    if crop is not None:
        side, by_channel = crop, (_numbers(mean or _MEAN), _numbers(std or _STD))
        asked_last = None if layout is None else _is_last(layout)

        def made(inputs: Inputs) -> Preprocessing:
            from detent.data import Preprocessing

            last = _has_channels_last(inputs) if asked_last is None else asked_last
            at, by = by_channel
            return Preprocessing(resize=resize, crop=(side, side), mean=at, std=by, layout="NHWC" if last else "NCHW")

        return made
    asked = (("--resize", resize), ("--mean", mean), ("--std", std), ("--layout", layout))
    given = [name for name, value in asked if value is not None]
    if given:
        raise typer.BadParameter(f"{', '.join(given)} without --crop: give the size of the images")
    return lambda _: None


def _is_last(layout: str) -> bool:
    if layout.lower() not in ("nchw", "nhwc"):
        raise typer.BadParameter(f"--layout {layout}: use nchw or nhwc")
    return layout.lower() == "nhwc"


def _has_channels_last(inputs: Inputs) -> bool:
    """Whether an image is taken as (batch, height, width, channels)."""
    shapes = [shape for shape in inputs.values() if len(shape) == 4]
    return len(shapes) == 1 and shapes[0][3] in (1, 3) and shapes[0][1] not in (1, 3)


def batches_of(
    data: str,
    inputs: Inputs,
    types: Types,
    *,
    batch_size: int | None,
    usual_size: int,
    how: Callable[[Inputs], Preprocessing | None],
) -> Iterable[Any]:
    """What `--data` names: files, or `file.py:function` or `module:function`, whose result is the batches."""
    from detent.data import Folder, called

    made, asked = called(data), how(inputs)
    if made is None:
        found = Folder(data, inputs, batch_size=batch_size or usual_size, preprocessing=asked, types=types)
        if asked is not None and not found.images:
            raise typer.BadParameter(f"--crop is for images, and {data} holds arrays: leave it out")
        if batch_size not in (None, found.batch_size):
            raise typer.BadParameter(f"--batch-size {batch_size}, and the network takes {found.batch_size} at a time")
        return found
    if batch_size is not None or asked is not None:
        unused = "--batch-size" if batch_size is not None else "--crop"
        raise typer.BadParameter(f"{unused} is for files, and {data} gives batches as they are: leave it out")
    return made


def _numbers(text: str) -> tuple[float, ...]:
    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError:
        raise typer.BadParameter(f"{text!r} is not a list of numbers such as 0.5,0.5,0.5") from None

"""Batches from `.npy` and `.npz` files, checked against the inputs of a network."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from detent.errors import DataError

__all__ = ["LABELS", "Inputs", "arrays_in", "batched"]

Array = npt.NDArray[Any]
Inputs = Mapping[str, tuple[int | str, ...]]
"""Input name to shape, with names for sizes that are free."""

LABELS = ("labels", "label", "targets", "y")
"""Keys of a `.npz` that hold labels."""


def arrays_in(path: Path, inputs: Inputs) -> Iterator[tuple[dict[str, Array], Array | None]]:
    """The batches one file holds: inputs by name, and labels where the file has them."""
    try:
        held = np.load(path, allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise DataError(f"read {path}", f"it is no numpy file: {error}", "save it with numpy.save or savez") from None
    if isinstance(held, np.ndarray):
        if len(inputs) != 1:
            raise DataError(
                f"read {path}",
                f"one array for the inputs {', '.join(inputs)}",
                "use a .npz with an array for each input",
            )
        name = next(iter(inputs))
        yield {name: batched(held, inputs[name], path, name)}, None
        return
    with held:
        yield _from_npz(held, inputs, path)


def _from_npz(held: Any, inputs: Inputs, path: Path) -> tuple[dict[str, Array], Array | None]:
    try:
        arrays: dict[str, Array] = {key: held[key] for key in held.files}
    except ValueError as error:
        raise DataError(f"read {path}", str(error), "save plain numbers, no objects") from None
    label = next((key for key in LABELS if key in arrays and key not in inputs), None)
    labels = arrays.pop(label) if label else None
    if len(inputs) == 1 and len(arrays) == 1:
        arrays = {next(iter(inputs)): next(iter(arrays.values()))}
    missing = [name for name in inputs if name not in arrays]
    if missing:
        raise DataError(
            f"read {path}",
            f"it holds {', '.join(arrays) or 'nothing'}, not {', '.join(missing)}",
            f"name the arrays {', '.join(inputs)}",
        )
    return {name: batched(arrays[name], shape, path, name) for name, shape in inputs.items()}, labels


def batched(array: Array, shape: tuple[int | str, ...], path: Path, name: str) -> Array:
    """With a batch axis; a single sample gets one."""
    if array.ndim == len(shape) - 1:
        array = array[np.newaxis]
    fits = array.ndim == len(shape) and all(
        isinstance(want, str) or axis == 0 or want == got
        for axis, (want, got) in enumerate(zip(shape, array.shape, strict=True))
    )
    if not fits:
        raise DataError(
            f"read {path} for the input {name!r}",
            f"shape {array.shape}",
            f"the network takes {tuple(shape)}; the first size is free",
        )
    if array.dtype == np.float64:
        array = array.astype(np.float32)
    if array.dtype == object:
        raise DataError(f"read {path}", "it holds Python objects", "save plain numbers")
    return array

"""Batches from `.npy` and `.npz` files, checked against the inputs of a network."""

from __future__ import annotations

import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from detent.errors import DataError

__all__ = ["LABELS", "Inputs", "Types", "arrays_in", "batched", "labeled_in", "whole_inputs"]

Array = npt.NDArray[Any]
Inputs = Mapping[str, tuple[int | str, ...]]
"""Input name to shape, with names for sizes that are free."""

Types = Mapping[str, str]
"""Input name to numpy type."""

_NPY = b"\x93NUMPY"

_MOST = 8 * 2**30
"""Bytes of a `.npz` when it is unpacked, which is read as a whole."""

LABELS = ("labels", "label", "targets", "y")
"""Keys of a `.npz` that hold labels."""


def whole_inputs(inputs: Inputs) -> set[str]:
    """Inputs without an axis of samples, such as a state: their first size is fixed while that of others is free; if
    all are fixed, it differs from that of the first input.

    >>> whole_inputs({"x": ("batch", 8), "state": (2, 1, 4)}), whole_inputs({"x": (1, 8), "state": (2, 1, 4)})
    ({'state'}, {'state'})
    """
    first = {name: shape[0] if shape else None for name, shape in inputs.items()}
    free = any(isinstance(size, str) for size in first.values())
    samples = next(iter(first.values()), None)
    return {name for name, size in first.items() if (not isinstance(size, str) if free else size != samples)}


def arrays_in(path: Path, inputs: Inputs, types: Types, rows: int) -> Iterator[tuple[dict[str, Array], Array | None]]:
    """What one file holds, at most `rows` samples at a time: inputs by name, and labels where the file has them.

    A `.npy` is mapped, not read, so that only those rows are in memory.
    """
    held = _opened(path)
    if isinstance(held, np.ndarray):
        if len(inputs) != 1:
            raise DataError(
                f"read {path}",
                f"one array for the inputs {', '.join(inputs)}",
                "use a .npz with an array for each input",
            )
        arrays, labels = {next(iter(inputs)): held}, None
    else:
        with held:
            arrays, labels = _from_npz(held, inputs, path)
    whole = {name: _with_batch(arrays[name], shape, path, name) for name, shape in inputs.items()}
    yield from _cut(whole, labels, types, path, rows, whole_inputs(inputs))


def labeled_in(path: Path) -> tuple[Array, Array]:
    """The one array of samples in a `.npz`, and their labels."""
    held = _opened(path)
    if isinstance(held, np.ndarray):
        raise DataError(f"read {path}", "one array, and no labels", "save both: numpy.savez(file, x=x, labels=labels)")
    with held:
        arrays, labels = _from_npz(held, {}, path)
    if labels is None or len(arrays) != 1:
        found = f"it holds {', '.join(held.files) or 'nothing'}"
        raise DataError(f"read {path}", found, "save two arrays: numpy.savez(file, x=x, labels=labels)")
    ((name, array),) = arrays.items()
    if not array.ndim or labels.shape != array.shape[:1] or labels.dtype.kind not in "iu" or not len(labels):
        found = f"{name} {array.shape} and labels {labels.shape} of {labels.dtype}"
        raise DataError(f"read {path}", found, "give each sample a label, a whole number")
    return _typed(array, None, path, name), labels.astype(np.int64)


def _opened(path: Path) -> Any:
    try:
        return np.load(_checked(path), allow_pickle=False, mmap_mode="r")
    except Exception as error:  # what numpy and zipfile raise has no end
        raise DataError(
            f"read {path}", f"it is not a numpy file: {error}", "save it with numpy.save or savez"
        ) from None


def _checked(path: Path) -> Path:
    """What numpy would take for a zip file is one: it leaves others open. Anything else it takes for a pickle, and
    says how to load that unsafely."""
    if not path.is_file():
        raise ValueError("it is not a regular file")
    with path.open("rb") as stream:
        begins = stream.read(len(_NPY))
    if begins != _NPY and not begins.startswith(b"PK"):
        raise ValueError("it does not begin as one")
    if begins != _NPY and not zipfile.is_zipfile(path):
        raise ValueError("a .npz that is cut off or damaged")
    if begins != _NPY:
        with zipfile.ZipFile(path) as archive:
            size = sum(member.file_size for member in archive.infolist())
        if size > _MOST:
            raise ValueError(f"{size:,} bytes when unpacked, and at most {_MOST:,} are read")
    return path


def _cut(
    arrays: Mapping[str, Array], labels: Array | None, types: Types, path: Path, rows: int, uncut: set[str]
) -> Iterator[tuple[dict[str, Array], Array | None]]:
    lengths = {name: len(array) for name, array in arrays.items() if array.ndim and name not in uncut}
    if labels is not None:
        labels = np.atleast_1d(labels)
        lengths["labels"] = len(labels)
    if len(set(lengths.values())) > 1:
        said = ", ".join(f"{count} of {name}" for name, count in lengths.items())
        raise DataError(
            f"read {path}", f"arrays of different lengths: {said}", "save the same number of samples of each"
        )
    for start in range(0, next(iter(lengths.values()), 1), rows):
        part = slice(start, start + rows)
        cut = {name: array[part] if array.ndim and name not in uncut else array for name, array in arrays.items()}
        given = {name: _typed(array, types.get(name), path, name) for name, array in cut.items()}
        yield given, None if labels is None else labels[part]


def _from_npz(held: Any, inputs: Inputs, path: Path) -> tuple[dict[str, Array], Array | None]:
    try:
        arrays: dict[str, Array] = {key: held[key] for key in held.files}
    except Exception as error:
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
    return arrays, labels


def batched(array: Array, shape: tuple[int | str, ...], path: Path, name: str, dtype: str | None = None) -> Array:
    """With a batch axis, which a single sample gets, and of the type the network takes."""
    return _typed(_with_batch(array, shape, path, name), dtype, path, name)


def _with_batch(array: Array, shape: tuple[int | str, ...], path: Path, name: str) -> Array:
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
    return array


def _typed(array: Array, dtype: str | None, path: Path, name: str) -> Array:
    """A copy in the type the network takes, where that is known: whole numbers may become real ones, not the other
    way round, and none may change."""
    asked = f"read {path} for the input {name!r}"
    if array.dtype.kind not in "fiub":
        raise DataError(asked, f"numbers of the type {array.dtype}", "save real or whole numbers")
    wanted = np.dtype(dtype if dtype is not None else np.float32 if array.dtype == np.float64 else array.dtype)
    if array.dtype.kind == "f" and bool(np.isnan(array).any()):
        raise DataError(asked, "NaN among the numbers", "find out what computed it, or leave the file out")
    if wanted.kind == "f":
        return np.array(array, wanted)
    made = np.array(array, wanted) if array.dtype.kind != "f" else None
    if made is None or not np.array_equal(made, array):
        raise DataError(asked, f"{array.dtype} numbers that {wanted} does not hold", f"save it as {wanted}")
    return made

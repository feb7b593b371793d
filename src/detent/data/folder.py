"""Batches from a file or a folder of files."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from detent.data.arrays import Inputs, Types, arrays_in, batched, whole_inputs
from detent.data.images import SUFFIXES, Preprocessing
from detent.errors import DataError

__all__ = ["Folder"]

_ARRAYS = (".npy", ".npz")


class Folder:
    """The batches of a `.npy` or `.npz` file, or of a folder of these or of images, in the order of their names.

    Each batch is a tuple of the inputs in the network's order, then the labels where the files have some
    (`labels` in a `.npz`). Can be gone through again; only one batch is in memory at a time (and of a `.npz`, all it
    holds). Samples that come one to a file are put together to `batch_size`, as far as they are of one shape; larger
    files are cut. A network whose batch size is fixed gets that size, and what is left over is not used. Numbers
    become those of `types`; without it float64 becomes float32.
    """

    def __init__(
        self,
        path: str | Path,
        inputs: Inputs,
        *,
        batch_size: int = 32,
        preprocessing: Preprocessing | None = None,
        types: Types | None = None,
    ):
        self.path, self.inputs, self.types = Path(path), inputs, types or {}
        uncut = whole_inputs(inputs)
        self._uncut = [name in uncut for name in inputs]
        fixed = [
            shape[0] for name, shape in inputs.items() if name not in uncut and shape and isinstance(shape[0], int)
        ]
        self.batch_size, self._whole = (fixed[0], True) if fixed else (batch_size, False)
        self.preprocessing = preprocessing
        if self.batch_size < 1:
            raise DataError(
                f"read data from {self.path}",
                f"batches of {self.batch_size} samples",
                "export the network with a free batch, or one of at least 1",
            )
        if not self.path.exists():
            raise DataError(f"read data from {self.path}", "there is no such file or folder", "give a path that exists")
        known = (*_ARRAYS, *SUFFIXES)
        found = [self.path] if self.path.is_file() else sorted(self.path.rglob("*"))
        self.files = [file for file in found if file.suffix.lower() in known]
        if not self.files:
            raise DataError(
                f"read data from {self.path}", "it contains no data", f"give files that end in {', '.join(known)}"
            )
        if preprocessing is None and self.images:
            raise DataError(
                f"read images from {self.path}",
                "no preprocessing was stated",
                "say how images are preprocessed: detent.data.Preprocessing, or --crop, --mean, --std",
            )

    @property
    def images(self) -> bool:
        """Whether there are pictures among the files."""
        return any(file.suffix.lower() in SUFFIXES for file in self.files)

    def __iter__(self) -> Iterator[tuple[npt.NDArray[Any], ...]]:
        waiting: list[tuple[npt.NDArray[Any], ...]] = []
        count, given = 0, False
        for part in self._parts():
            if waiting and len(part) != len(waiting[0]):
                raise DataError(
                    f"read data from {self.path}", "some files have labels and some not", "give all or none"
                )
            if waiting and [one.shape[1:] for one in part] != [one.shape[1:] for one in waiting[0]]:
                if count and not self._whole:
                    yield self._joined(waiting)
                waiting, count = [], 0
            waiting.append(part)
            count += len(part[self._uncut.index(False)])
            while count >= self.batch_size:
                joined = self._joined(waiting)
                given = True
                yield self._rows(joined, slice(self.batch_size))
                waiting = [self._rows(joined, slice(self.batch_size, None))]
                count -= self.batch_size
        if count and not self._whole:
            yield self._joined(waiting)
        elif count and not given:
            raise DataError(
                f"read data from {self.path}",
                f"{count} samples, and the network takes {self.batch_size} at a time",
                f"give at least {self.batch_size}, or export the network with a free batch",
            )

    def _parts(self) -> Iterator[tuple[npt.NDArray[Any], ...]]:
        for file in self.files:
            if file.suffix.lower() in _ARRAYS:
                for arrays, labels in arrays_in(file, self.inputs, self.types, self.batch_size):
                    given = tuple(arrays[name] for name in self.inputs)
                    yield given if labels is None else (*given, labels)
            else:
                yield (self._image(file),)

    def _image(self, file: Path) -> npt.NDArray[Any]:
        assert self.preprocessing is not None
        if len(self.inputs) != 1:
            raise DataError(
                f"read the image {file}", f"the network takes {', '.join(self.inputs)}", "use a .npz for each sample"
            )
        ((name, shape),) = self.inputs.items()
        return batched(self.preprocessing(file), shape, file, name, self.types.get(name))

    def _rows(self, arrays: tuple[npt.NDArray[Any], ...], rows: slice) -> tuple[npt.NDArray[Any], ...]:
        return tuple(array if self._is_uncut(index) else array[rows] for index, array in enumerate(arrays))

    def _joined(self, parts: list[tuple[npt.NDArray[Any], ...]]) -> tuple[npt.NDArray[Any], ...]:
        """One batch of several; of inputs that have no axis of samples, the first's."""
        if len(parts) == 1:
            return parts[0]
        columns = enumerate(zip(*parts, strict=True))
        return tuple(arrays[0] if self._is_uncut(index) else np.concatenate(arrays) for index, arrays in columns)

    def _is_uncut(self, index: int) -> bool:
        return index < len(self._uncut) and self._uncut[index]  # labels stand behind the inputs

"""MNIST and Fashion-MNIST: idx files, gzipped or not."""

from __future__ import annotations

import gzip
import io
import struct
import zlib
from pathlib import Path

import numpy as np
import numpy.typing as npt

from detent.errors import DataError
from detent.files import read_bytes
from detent.training.datasets.images import Images, Normalization

__all__ = ["FASHION_MNIST", "MNIST", "idx_images", "read_idx"]

MNIST = Normalization((0.1307,), (0.3081,))
FASHION_MNIST = Normalization((0.2860,), (0.3530,))

_UINT8 = 8
_MOST = 2**30  # bytes; the largest of MNIST has 47 MB


def read_idx(path: Path) -> npt.NDArray[np.uint8]:
    """The array of an idx file: two zeros, the type, the rank, sizes as big-endian integers, then the bytes."""
    asked = f"read {path}"
    try:
        content = read_bytes(path, most=_MOST)
        if path.suffix == ".gz":
            with gzip.GzipFile(fileobj=io.BytesIO(content)) as packed:
                content = packed.read(_MOST)
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(asked, f"it cannot be read: {error}", "get the file again") from None
    if len(content) < 4 or content[:2] != b"\0\0" or content[2] != _UINT8 or not content[3]:
        raise DataError(asked, "it is not an idx file of bytes", "get the file again")
    rank, start = content[3], 4 + 4 * content[3]
    sizes = struct.unpack(f">{rank}I", content[4:start]) if len(content) >= start else ()
    if not sizes or len(content) != start + int(np.prod(sizes, dtype=np.int64)):
        raise DataError(asked, f"{len(content)} bytes, which is not what its header says", "get the file again")
    return np.frombuffer(content, np.uint8, offset=start).reshape(sizes)


def idx_images(folder: Path, split: str, normalize: Normalization, name: str) -> Images:
    """The images of a split, under the file names of the publisher."""
    stem = "train" if split == "train" else "t10k"
    pixels = read_idx(_file(folder, f"{stem}-images-idx3-ubyte", name))
    labels = read_idx(_file(folder, f"{stem}-labels-idx1-ubyte", name))
    return Images(pixels[..., np.newaxis], labels, normalize)


def _file(folder: Path, stem: str, name: str) -> Path:
    for candidate in (folder / stem, folder / f"{stem}.gz"):
        if candidate.is_file():
            return candidate
    raise DataError(
        f"the data set {name} in {folder}",
        f"there is no {stem} or {stem}.gz",
        f"put the four files of {name} (train and t10k, images and labels) into {folder}",
    )

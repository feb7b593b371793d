"""CIFAR-10 in the forms in which it is distributed: binary files, Python files, the archives of either, and PNG
sheets."""

from __future__ import annotations

import io
import json
import pickle
import tarfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from detent.errors import DataError, install_hint, refusing
from detent.files import read_bytes
from detent.training.datasets.images import Images, Normalization

__all__ = ["CIFAR10", "cifar10"]

CIFAR10 = Normalization((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
"""The ImageNet statistics, which published CIFAR weights are trained with as often as with CIFAR's own."""

_SIDE, _BYTES = 32, 3 * 32 * 32
_MOST = 2**28  # bytes of one batch, which has 31 MB
_TRAIN, _TEST = tuple(f"data_batch_{i}" for i in range(1, 6)), ("test_batch",)

_Part = tuple[npt.NDArray[Any], npt.NDArray[Any]]


def cifar10(folder: Path, split: str) -> Images:
    """The images of a split, from whichever form `folder` has."""
    names = _TRAIN if split == "train" else _TEST
    for found in (_batches(folder, names), _archive(folder, names), _sheets(folder, split)):
        if found:
            pixels, labels = zip(*found, strict=True)
            return Images(np.concatenate(pixels), np.concatenate(labels), CIFAR10)
    raise DataError(
        f"the data set cifar10 in {folder}",
        "there is neither data_batch_1, data_batch_1.bin, cifar-10-*.tar.gz nor test.png",
        f"put cifar-10-binary.tar.gz, cifar-10-python.tar.gz, or what is in one of them, into {folder}",
    )


def _batches(folder: Path, names: tuple[str, ...]) -> list[_Part]:
    roots = (folder, folder / "cifar-10-batches-bin", folder / "cifar-10-batches-py")
    forms: tuple[tuple[str, Callable[[bytes, str], _Part]], ...] = ((".bin", _binary), ("", _python))
    for root in roots:
        for suffix, read in forms:
            files = [root / f"{name}{suffix}" for name in names]
            if all(file.is_file() for file in files):
                return [read(file.read_bytes(), str(file)) for file in files]
    return []


def _archive(folder: Path, names: tuple[str, ...]) -> list[_Part]:
    forms: tuple[tuple[str, str, Callable[[bytes, str], _Part]], ...] = (
        ("cifar-10-binary.tar.gz", ".bin", _binary),
        ("cifar-10-python.tar.gz", "", _python),
    )
    for file, suffix, read in forms:
        path = folder / file
        if path.is_file():
            return [read(content, f"{path}: {name}") for name, content in _members(path, names, suffix)]
    return []


def _members(path: Path, names: tuple[str, ...], suffix: str) -> list[tuple[str, bytes]]:
    """Read in place: archives are not unpacked to disk."""
    wanted: dict[str, bytes] = {}
    try:
        with tarfile.open(path) as archive:
            for member in archive:
                stem = Path(member.name).name
                held = archive.extractfile(member) if stem in {f"{name}{suffix}" for name in names} else None
                if held is not None:
                    wanted[stem] = held.read(_MOST)
    except (tarfile.TarError, OSError, EOFError, zlib.error) as error:
        raise DataError(f"read {path}", f"it is not a complete archive: {error}", "get it again") from None
    missing = [name for name in names if f"{name}{suffix}" not in wanted]
    if missing:
        raise DataError(f"read {path}", f"it has no {', '.join(missing)}", "get it again")
    return [(name, wanted[f"{name}{suffix}"]) for name in names]


def _binary(content: bytes, where: str) -> _Part:
    """Rows of a label and 3072 pixels, channel by channel."""
    if not content or len(content) % (_BYTES + 1):
        raise DataError(f"read {where}", f"{len(content)} bytes are not rows of {_BYTES + 1}", "download it again")
    rows = np.frombuffer(content, np.uint8).reshape(-1, _BYTES + 1)
    return _upright(rows[:, 1:]), rows[:, 0]


def _python(content: bytes, where: str) -> _Part:
    """A pickled dict with `data` and `labels`."""
    try:
        held = _PlainArrays(io.BytesIO(content), encoding="bytes").load()
        read = (held[name] for name in (b"data", b"labels"))
        data, labels = (np.asarray(one.values if isinstance(one, _Array) else one) for one in read)
    except Exception as error:  # a pickle that is damaged raises anything
        raise DataError(f"read {where}", f"it is not a CIFAR-10 batch: {error}", "get it again") from None
    if data.dtype != np.uint8 or data.ndim != 2 or data.shape[1] != _BYTES:
        raise DataError(f"read {where}", f"its data is {data.dtype}{list(data.shape)}", "get it again")
    if labels.dtype.kind not in "iu" or labels.shape != data.shape[:1]:
        raise DataError(f"read {where}", f"its labels are {labels.dtype}{list(labels.shape)}", "get it again")
    return _upright(data), labels


class _PlainArrays(pickle.Unpickler):
    """An unpickler that allows only the names that a pickled array needs, and makes arrays by itself: numpy's own
    `__setstate__` crashes on damaged states."""

    def find_class(self, module: str, name: str) -> Any:
        match module, name:
            case ("numpy.core.multiarray" | "numpy._core.multiarray", "_reconstruct"):
                return _reconstruct
            case ("numpy", "ndarray"):
                return _Array
            case ("numpy", "dtype"):
                return _Dtype
            case ("_codecs", "encode"):  # how Python 3 writes bytes in protocol 2
                return _encode
        raise pickle.UnpicklingError(f"it names {module}.{name}, and nothing but arrays is read")


class _Dtype:
    """A pickled dtype of integers: its name, such as "i8", and its byte order."""

    def __init__(self, name: Any, *_: Any):
        name = name.decode() if isinstance(name, bytes) else name
        if name not in ("u1", "i1", "i2", "i4", "i8"):
            raise pickle.UnpicklingError(f"it holds numbers of the type {name!r}")
        self.name, self.order = name, "|"

    def __setstate__(self, state: Any) -> None:
        order = state[1].decode() if isinstance(state[1], bytes) else state[1]
        if order not in ("<", ">", "|", "="):
            raise pickle.UnpicklingError(f"it holds numbers of the byte order {order!r}")
        self.order = order


class _Array:
    """A pickled array: once its state has come, its `values`."""

    def __setstate__(self, state: Any) -> None:
        _, shape, dtype, in_columns, content = state
        if not isinstance(dtype, _Dtype) or not isinstance(content, bytes):
            raise pickle.UnpicklingError("it holds an array of another kind")
        numbers = np.frombuffer(content, f"{dtype.order}{dtype.name}")
        self.values = numbers.reshape(shape, order="F" if in_columns else "C")


def _reconstruct(kind: Any, *_: Any) -> _Array:
    if kind is not _Array:
        raise pickle.UnpicklingError("it holds an array of another kind")
    return _Array()


def _encode(text: str, encoding: str) -> bytes:
    if encoding != "latin1":
        raise pickle.UnpicklingError(f"bytes written as {encoding}")
    return text.encode("latin1")


def _sheets(folder: Path, split: str) -> list[_Part]:
    """PNG sheets with one image per row of pixels (`test.png`, `train_0.png`), and labels as JSON."""
    files = [folder / "test.png"] if split == "test" else sorted(folder.glob("train_[0-9].png"))
    labels_file = folder / f"{split}_labels.json"
    if not files or not all(file.is_file() for file in (*files, labels_file)):
        return []
    with refusing(DataError, f"read {labels_file}", "get it again"):
        labels = np.asarray(json.loads(read_bytes(labels_file)), np.int64)
        if labels.ndim != 1:
            raise DataError(f"read {labels_file}", f"numbers of shape {labels.shape}", "give a list of labels")
    parts, start = [], 0
    for file in files:
        pixels = _sheet(file)
        parts.append((pixels, labels[start : start + len(pixels)]))
        start += len(pixels)
    return parts


def _sheet(path: Path) -> npt.NDArray[Any]:
    try:
        from PIL import Image
    except ImportError:
        raise DataError(f"read {path}", "Pillow is not installed", install_hint("images")) from None
    # The sheet is larger than what Pillow takes for an attack; its size is checked here instead.
    most, Image.MAX_IMAGE_PIXELS = Image.MAX_IMAGE_PIXELS, None
    try:
        with Image.open(path) as opened:
            if opened.size[0] != _SIDE * _SIDE or opened.size[1] > 100_000:
                raise DataError(f"read {path}", f"a picture of {opened.size}", f"give rows of {_SIDE * _SIDE} pixels")
            return np.asarray(opened.convert("RGB")).reshape(-1, _SIDE, _SIDE, 3)
    except DataError:
        raise
    except Exception as error:  # of Pillow, whose readers raise anything at a damaged file
        raise DataError(f"read {path}", str(error), "get it again") from None
    finally:
        Image.MAX_IMAGE_PIXELS = most


def _upright(rows: npt.NDArray[Any]) -> npt.NDArray[Any]:
    upright: npt.NDArray[Any] = rows.reshape(-1, 3, _SIDE, _SIDE).transpose(0, 2, 3, 1)
    return upright

"""Data sets from the files they are published in; a missing or damaged one is a message."""

from __future__ import annotations

import gzip
import json
import os
import pickle
import struct
import tarfile
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from detent.data import Preprocessing
from detent.errors import DataError
from detent.training.datasets import MNIST, ImageFolder, Npz, cifar10, crop_and_flip, idx_images, read_idx

PIXELS = np.arange(2 * 3072, dtype=np.uint64).astype(np.uint8).reshape(2, 3072)
LABELS = [3, 8]
UPRIGHT = PIXELS.reshape(2, 3, 32, 32).transpose(0, 2, 3, 1)


def idx(values: np.ndarray) -> bytes:
    return bytes([0, 0, 8, values.ndim]) + struct.pack(f">{values.ndim}I", *values.shape) + values.tobytes()


def test_idx_files_gzipped_or_not(tmp_path: Path) -> None:
    images = np.arange(2 * 4 * 5, dtype=np.uint8).reshape(2, 4, 5)
    (tmp_path / "t10k-images-idx3-ubyte").write_bytes(idx(images))
    (tmp_path / "t10k-labels-idx1-ubyte.gz").write_bytes(gzip.compress(idx(np.array([7, 2], np.uint8))))
    samples = idx_images(tmp_path, "test", MNIST, "MNIST")
    pixel, label = samples[1]
    assert pixel.shape == (1, 4, 5)
    assert label.item() == 2
    assert pixel[0, 0, 1].item() == pytest.approx((21 / 255 - 0.1307) / 0.3081)


@pytest.mark.parametrize("content", [b"", b"\0\0\x08", b"\0\0\x09\x01\0\0\0\x01a", idx(np.zeros(5, np.uint8))[:-1]])
def test_damaged_idx_files_are_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "f").write_bytes(content)
    with pytest.raises(DataError):
        read_idx(tmp_path / "f")


def test_missing_idx_files_say_where_to_put_them(tmp_path: Path) -> None:
    with pytest.raises(DataError) as error:
        idx_images(tmp_path, "train", MNIST, "MNIST")
    assert "train-images-idx3-ubyte" in error.value.found
    assert str(tmp_path) in error.value.to_do


def binary() -> bytes:
    return b"".join(bytes([label]) + row.tobytes() for label, row in zip(LABELS, PIXELS, strict=True))


def python() -> bytes:
    return pickle.dumps({b"data": PIXELS, b"labels": LABELS, b"batch_label": b"test"}, protocol=2)


def archived(path: Path, name: str, content: bytes) -> None:
    inner = path.parent / Path(name).name
    inner.write_bytes(content)
    with tarfile.open(path, "w:gz") as archive:
        archive.add(inner, name)
    inner.unlink()


@pytest.mark.parametrize("form", ["binary", "python", "binary archive", "python archive", "png"])
def test_cifar10_in_every_form(tmp_path: Path, form: str) -> None:
    match form:
        case "binary":
            (tmp_path / "test_batch.bin").write_bytes(binary())
        case "python":
            (tmp_path / "test_batch").write_bytes(python())
        case "binary archive":
            archived(tmp_path / "cifar-10-binary.tar.gz", "cifar-10-batches-bin/test_batch.bin", binary())
        case "python archive":
            archived(tmp_path / "cifar-10-python.tar.gz", "cifar-10-batches-py/test_batch", python())
        case "png":
            image = pytest.importorskip("PIL.Image", reason="the extra `images` is not installed")
            image.fromarray(np.ascontiguousarray(UPRIGHT).reshape(2, 1024, 3)).save(tmp_path / "test.png")
            (tmp_path / "test_labels.json").write_text(json.dumps(LABELS))
    samples = cifar10(tmp_path, "test")
    assert np.array_equal(samples.pixels, UPRIGHT)
    assert samples.labels.tolist() == LABELS
    assert samples[0][0].shape == (3, 32, 32)


@pytest.mark.parametrize("labels", [7, [[3, 8]], [3, [8]], ["3.5"], {"3": 8}, [3]])
def test_labels_that_are_not_one_for_each_image_are_refused(labels: object, tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image", reason="the extra `images` is not installed")
    image.fromarray(np.ascontiguousarray(UPRIGHT).reshape(2, 1024, 3)).save(tmp_path / "test.png")
    (tmp_path / "test_labels.json").write_text(json.dumps(labels))
    with pytest.raises(DataError, match="labels"):
        cifar10(tmp_path, "test")


@pytest.mark.parametrize("protocol", [2, 4])
@pytest.mark.parametrize("labels", [np.array(LABELS), np.array(LABELS, ">i4"), np.array(LABELS, np.uint8)])
def test_labels_of_a_batch_file_may_be_an_array(labels: np.ndarray, protocol: int, tmp_path: Path) -> None:
    data = np.asfortranarray(PIXELS) if protocol == 4 else PIXELS
    (tmp_path / "test_batch").write_bytes(pickle.dumps({b"data": data, b"labels": labels}, protocol=protocol))
    samples = cifar10(tmp_path, "test")
    assert samples.labels.tolist() == LABELS
    assert np.array_equal(samples.pixels, UPRIGHT)


@pytest.mark.parametrize("made", [np.array([None, None]), np.array(LABELS, np.float64), np.array(["a", "b"])])
def test_arrays_of_other_numbers_are_not_made(made: np.ndarray, tmp_path: Path) -> None:
    """numpy ended the process where the state of a pickled dtype or array was damaged."""
    (tmp_path / "test_batch").write_bytes(pickle.dumps({b"data": PIXELS, b"labels": made}, protocol=2))
    with pytest.raises(DataError, match="it holds numbers of the type"):
        cifar10(tmp_path, "test")


@pytest.mark.parametrize("labels", [7, [[3, 8]], [3], [3.5, 8.5], ["a", "b"], {3: 8}])
def test_labels_of_a_batch_file_are_integers_one_for_each_image(labels: object, tmp_path: Path) -> None:
    (tmp_path / "test_batch").write_bytes(pickle.dumps({b"data": PIXELS, b"labels": labels}, protocol=2))
    with pytest.raises(DataError, match="its labels are"):
        cifar10(tmp_path, "test")


@pytest.mark.parametrize(("images", "labels"), [((2, 4, 5), (2, 1)), ((2, 4), (2,)), ((2, 4, 5), (3,))])
def test_idx_files_of_other_shapes_are_refused(
    images: tuple[int, ...], labels: tuple[int, ...], tmp_path: Path
) -> None:
    (tmp_path / "t10k-images-idx3-ubyte").write_bytes(idx(np.zeros(images, np.uint8)))
    (tmp_path / "t10k-labels-idx1-ubyte").write_bytes(idx(np.zeros(labels, np.uint8)))
    with pytest.raises(DataError, match="labels of shape"):
        idx_images(tmp_path, "test", MNIST, "MNIST")


def test_a_batch_file_cannot_run_code(tmp_path: Path) -> None:
    class Trap:
        def __reduce__(self) -> Any:
            return (os.mkdir, (str(tmp_path / "trapped"),))

    (tmp_path / "test_batch").write_bytes(pickle.dumps(Trap()))
    with pytest.raises(DataError, match="mkdir"):
        cifar10(tmp_path, "test")
    assert not (tmp_path / "trapped").exists()


def test_cut_and_missing_cifar10(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="put cifar-10-binary"):
        cifar10(tmp_path, "test")
    (tmp_path / "test_batch.bin").write_bytes(binary()[:-1])
    with pytest.raises(DataError, match="rows of 3073"):
        cifar10(tmp_path, "test")


def test_the_shared_folder() -> None:
    default = Path(__file__).resolve().parents[3] / "shared" / "data"
    folder = Path(os.environ.get("DETENT_DATA", default)) / "cifar10"
    if not folder.is_dir():
        pytest.skip("the folder of data that DETENT_DATA names is absent")
    samples = cifar10(folder, "test")
    assert len(samples) == 10_000
    assert np.bincount(samples.labels).tolist() == [1000] * 10


def test_image_folder(tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image", reason="the extra `images` is not installed")
    for name in ("cat", "dog"):
        (tmp_path / "val" / name).mkdir(parents=True)
        image.fromarray(np.zeros((10, 12, 3), np.uint8)).save(tmp_path / "val" / name / "1.png")
    samples = ImageFolder(tmp_path, "test", Preprocessing(resize=8, crop=(8, 8)))
    assert samples.classes == ["cat", "dog"]
    assert samples[1][0].shape == (3, 8, 8)
    assert samples[1][1].item() == 1
    with pytest.raises(DataError, match="no folder train"):
        ImageFolder(tmp_path, "train", Preprocessing())


def test_npz(tmp_path: Path, refuses: Callable[..., AbstractContextManager[None]]) -> None:
    tokens, labels = np.arange(12).reshape(4, 3), np.array([1, 0, 1, 0], np.uint8)
    np.savez(tmp_path / "train.npz", tokens=tokens, y=labels)
    np.savez(tmp_path / "val.npz", x=tokens.astype(np.float64) / 2, labels=labels)
    train, test = Npz(tmp_path, "train"), Npz(tmp_path, "test")
    assert [(x.tolist(), int(y)) for x, y in (train[0], train[3])] == [([0, 1, 2], 1), ([9, 10, 11], 0)]
    assert (len(test), test[1][0].tolist(), test[1][0].dtype) == (4, [1.5, 2.0, 2.5], torch.float32)
    with refuses(DataError, found="no test.npz or val.npz", to_do="numpy.savez"):
        Npz(tmp_path / "none", "test")
    for held, found in (
        ({"x": tokens}, "it holds x"),
        ({"x": tokens, "z": tokens, "y": labels}, "it holds x, z, y"),
        ({"x": tokens, "y": labels[:3]}, "x (4, 3) and labels (3,) of uint8"),
        ({"x": tokens, "y": labels / 2}, "labels (4,) of float64"),
        ({"x": np.array([None] * 4), "y": labels}, "Object arrays"),
    ):
        np.savez(tmp_path / "test.npz", **held)
        with refuses(DataError, found=found, to_do=""):
            Npz(tmp_path, "test")


def test_augmentation_draws_from_its_generator() -> None:
    picture = torch.randn(3, 16, 16)
    one, same, other = (crop_and_flip(picture, torch.Generator().manual_seed(seed)) for seed in (1, 1, 4))
    assert one.shape == picture.shape
    assert torch.equal(one, same)
    assert not torch.equal(one, other)

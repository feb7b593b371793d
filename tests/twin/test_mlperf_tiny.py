"""The reference int8 networks of MLPerf Tiny: any .tflite file in the twin, on the whole test sets."""

from __future__ import annotations

import json
import os
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
import torch

pytest.importorskip("ai_edge_litert", reason="pip install 'detent[litert]'")

from detent.deploy.tflite import read_network
from detent.engines.litert import Kernels, LiteRT
from detent.twin.arithmetic import Arithmetic
from detent.twin.interpreter import Twin
from detent.twin.ruy import Ruy
from detent.twin.tflite_reference import TfliteReference
from detent.twin.xnnpack import Xnnpack

DATA = Path(os.environ.get("DETENT_DATA", Path(__file__).parents[2].parent / "shared" / "data"))
pytestmark = pytest.mark.skipif(not (DATA / "mlperf_tiny").is_dir(), reason="no data: set DETENT_DATA")

Codes = npt.NDArray[np.int8]
BATCH = 50  # what fits in the cache

SOME: list[tuple[Kernels, Arithmetic]] = [("builtin", Ruy()), ("reference", TfliteReference())]


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Two threads that wait for each other on a busy machine are slower than one."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def compared(file: str, codes: Codes, kernels: Kernels, arithmetic: Arithmetic) -> tuple[int, Codes]:
    """How many outputs differ, and those of the engine."""
    content = (DATA / "mlperf_tiny" / file).read_bytes()
    graph = read_network(content)
    (name,), (output,) = graph.inputs, graph.outputs
    engine, twin = LiteRT(content, graph=graph, kernels=kernels), Twin(graph, arithmetic)
    wrong, found = 0, []
    for start in range(0, len(codes), BATCH):
        batch = {name: codes[start : start + BATCH]}
        theirs, ours = engine.run(batch)[output.name], twin.run(batch)[output.name]
        assert theirs.dtype == ours.dtype == np.int8
        wrong += int((theirs != ours).sum())
        found.append(theirs)
    return wrong, np.concatenate(found)


@pytest.fixture(scope="module")
def keywords() -> tuple[Codes, npt.NDArray[np.int64]]:
    with np.load(DATA / "mlperf_tiny" / "kws_test.npz") as held:
        return held["codes"][:, None], held["labels"]


@pytest.fixture(scope="module")
def images() -> tuple[Codes, npt.NDArray[np.int64]]:
    rows = png(DATA / "cifar10" / "test.png").reshape(-1, 32, 32, 3)
    labels = np.array(json.loads((DATA / "cifar10" / "test_labels.json").read_text()))
    return (rows.astype(np.int16) - 128).astype(np.int8).transpose(0, 3, 1, 2), labels


def png(path: Path) -> npt.NDArray[np.uint8]:
    """An 8-bit RGB image whose rows are stored as they are, as differences, or with Paeth's predictor."""
    content, position, packed = path.read_bytes(), 8, b""
    width = height = 0
    while position < len(content):
        length, kind = struct.unpack(">I4s", content[position : position + 8])
        chunk = content[position + 8 : position + 8 + length]
        if kind == b"IHDR":
            width, height = struct.unpack(">II", chunk[:8])
        packed += chunk if kind == b"IDAT" else b""
        position += 12 + length
    raw = np.frombuffer(zlib.decompress(packed), np.uint8).reshape(height, 1 + 3 * width)
    filters, stored = raw[:, 0], raw[:, 1:].reshape(height, width, 3)
    assert set(filters.tolist()) <= {0, 1, 4}
    rows = np.cumsum(stored, axis=1, dtype=np.uint8)
    rows[filters == 0] = stored[filters == 0]
    for row in np.flatnonzero(filters == 4):
        rows[row] = paeth(stored[row].astype(np.int64), rows[row - 1].astype(np.int64))
    return rows


def paeth(stored: npt.NDArray[np.int64], above: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    found, left, corner = np.zeros_like(stored), np.zeros(3, np.int64), np.zeros(3, np.int64)
    for column, up in enumerate(above):
        a, b, c = abs(up - corner), abs(left - corner), abs(left + up - 2 * corner)
        near = np.where((a <= b) & (a <= c), left, np.where(b <= c, up, corner))
        left, corner = (stored[column] + near) & 255, up
        found[column] = left
    return found


def test_image_classification_on_every_test_image(images: tuple[Codes, npt.NDArray[np.int64]]) -> None:
    codes, labels = images
    wrong, outputs = compared("pretrainedResnet_quant.tflite", codes, "xnnpack", Xnnpack())
    assert outputs.shape == (10_000, 10)
    assert wrong == 0
    # The figure of the file's own README is 86.97 with the kernels of its day; 0.15 is 15 images.
    assert (outputs.argmax(1) == labels).mean() * 100 == pytest.approx(86.97, abs=0.15)


@pytest.mark.parametrize(("kernels", "arithmetic"), SOME, ids=["builtin", "reference"])
def test_image_classification_with_the_other_kernels(
    images: tuple[Codes, npt.NDArray[np.int64]], kernels: Kernels, arithmetic: Arithmetic
) -> None:
    assert compared("pretrainedResnet_quant.tflite", images[0][:200], kernels, arithmetic)[0] == 0


def test_keyword_spotting_on_every_test_sample(keywords: tuple[Codes, npt.NDArray[np.int64]]) -> None:
    codes, labels = keywords
    wrong, outputs = compared("kws_ref_model.tflite", codes, "xnnpack", Xnnpack())
    assert outputs.shape == (1000, 12)
    assert wrong == 0
    assert (outputs.argmax(1) == labels).mean() == pytest.approx(0.902, abs=0.002)


@pytest.mark.parametrize(("kernels", "arithmetic"), SOME, ids=["builtin", "reference"])
def test_keyword_spotting_with_the_other_kernels(
    keywords: tuple[Codes, npt.NDArray[np.int64]], kernels: Kernels, arithmetic: Arithmetic
) -> None:
    assert compared("kws_ref_model.tflite", keywords[0][:200], kernels, arithmetic)[0] == 0

"""The reference int8 networks of MLPerf Tiny: any .tflite file in the twin, on the whole test sets."""

from __future__ import annotations

import json
import os
import struct
import zlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
import torch

pytest.importorskip("ai_edge_litert", reason="pip install 'detent[litert]'")

from detent.ir import Encoding
from detent.targets.litert.arithmetic.reference import TfliteReference
from detent.targets.litert.arithmetic.ruy import Ruy
from detent.targets.litert.arithmetic.xnnpack import Xnnpack
from detent.targets.litert.engine import Kernels, LiteRT
from detent.targets.litert.file import TfliteModel, TfliteTensor, read_network, read_tflite, to_bytes
from detent.targets.litert.file.versions import version_of
from detent.twin import Arithmetic, Twin

DATA = Path(os.environ.get("DETENT_DATA", Path(__file__).parents[3].parent / "shared" / "data"))
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
    if codes.dtype == np.int16:
        content = to_bytes(widened(read_tflite(content)))
    graph = read_network(content)
    (name,), (output,) = graph.inputs, graph.outputs
    engine, twin = LiteRT(content, graph=graph, kernels=kernels), Twin(graph, arithmetic)
    wrong, found = 0, []
    for start in range(0, len(codes), BATCH):
        batch = {name: codes[start : start + BATCH]}
        theirs, ours = engine.run(batch)[output.name], twin.run(batch)[output.name]
        assert theirs.dtype == ours.dtype == codes.dtype
        wrong += int((theirs != ours).sum())
        found.append(theirs)
    return wrong, np.concatenate(found)


def widened(model: TfliteModel) -> TfliteModel:
    """The same network with 16-bit activations: the ranges that they had, around zero, and weights as they were."""
    factors = {index: wide_scale(model, index) for index, held in enumerate(model.tensors) if is_activation(held)}
    tensors = [
        replace(held, dtype="int16", encoding=Encoding(np.float32(factors[index]), np.int64(0), "int16"))
        if index in factors
        else held
        for index, held in enumerate(model.tensors)
    ]
    for operator in model.operators:
        if operator.kind not in ("CONV_2D", "DEPTHWISE_CONV_2D", "FULLY_CONNECTED"):
            continue
        x, w, b = operator.inputs
        bias, weight = model.tensors[b], model.tensors[w].encoding
        assert weight is not None
        assert bias.encoding is not None
        assert bias.data is not None
        scale = np.asarray(np.float32(factors[x]) * weight.scale, np.float32)
        codes = np.rint(bias.encoding.dequantize(bias.data) / scale.astype(np.float64)).astype(np.int64)
        grid = Encoding(scale, np.zeros(scale.shape, np.int64), "int32", bias.encoding.axis)
        tensors[b] = replace(bias, dtype="int64", encoding=grid, data=codes)
    operators = tuple(
        replace(
            each,
            options={**each.options, "potScaleInt16": False} if each.kind == "ADD" else each.options,
            version=version_of(each.kind, ["int16"]),
        )
        for each in model.operators
    )
    return replace(model, tensors=tuple(tensors), operators=operators)


def is_activation(tensor: TfliteTensor) -> bool:
    return tensor.dtype == "int8" and tensor.data is None


def wide_scale(model: TfliteModel, index: int) -> float:
    held = model.tensors[index].encoding
    assert held is not None
    if any(index in operator.outputs and operator.kind == "SOFTMAX" for operator in model.operators):
        return 2.0**-15
    if any(index in operator.outputs and operator.kind in KEEPING for operator in model.operators):
        maker = next(operator for operator in model.operators if index in operator.outputs)
        return wide_scale(model, maker.inputs[0])
    least, greatest = held.dequantize(np.array([-128, 127]))
    return float(np.float32(max(-least, greatest) / 32767))


KEEPING = ("AVERAGE_POOL_2D", "MAX_POOL_2D", "RESHAPE")
"""Operators whose output is on the grid of their input."""


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


def test_image_classification(images: tuple[Codes, npt.NDArray[np.int64]]) -> None:
    wrong, outputs = compared("pretrainedResnet_quant.tflite", images[0][:1000], "xnnpack", Xnnpack())
    assert outputs.shape == (1000, 10)
    assert wrong == 0


@pytest.mark.full
def test_image_classification_on_every_test_image(images: tuple[Codes, npt.NDArray[np.int64]]) -> None:
    codes, labels = images
    wrong, outputs = compared("pretrainedResnet_quant.tflite", codes, "xnnpack", Xnnpack())
    assert outputs.shape == (10_000, 10)
    assert wrong == 0
    # The figure of the file's own README is 86.97 with the kernels of its day; 0.15 is 15 images.
    assert (outputs.argmax(1) == labels).mean() * 100 == pytest.approx(86.97, abs=0.15)


@pytest.mark.few(1)
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


@pytest.mark.pairwise(strength=1)
@pytest.mark.parametrize(("kernels", "arithmetic"), [("xnnpack", Xnnpack()), SOME[1]], ids=["xnnpack", "reference"])
@pytest.mark.parametrize("which", ["images", "keywords"])
def test_with_activations_of_16_bits(
    which: str, kernels: Kernels, arithmetic: Arithmetic, request: pytest.FixtureRequest
) -> None:
    """The classes are those of the file as it is, but for a few where two were nearly as likely."""
    file = {"images": "pretrainedResnet_quant.tflite", "keywords": "kws_ref_model.tflite"}[which]
    codes, _ = request.getfixturevalue(which)
    some = codes[: {"images": 20, "keywords": 100}[which]]
    held = read_tflite((DATA / "mlperf_tiny" / file).read_bytes())
    grid, wide = held.tensors[held.inputs[0]].encoding, wide_scale(held, held.inputs[0])
    assert grid is not None
    wrong, outputs = compared(file, np.rint(grid.dequantize(some) / wide).astype(np.int16), kernels, arithmetic)
    assert len(outputs) == len(some)
    assert wrong == 0
    narrow = compared(file, some, kernels, arithmetic)[1]
    assert (outputs.argmax(1) == narrow.argmax(1)).mean() >= 0.95

"""What engines computed on a CPU with AVX2 and without VNNI, recorded there: the arithmetic of such CPUs gives the same
numbers on every machine."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import onnx
import pytest

from detent.twin import ARITHMETICS, Twin

DATA = Path(os.environ.get("DETENT_DATA", Path(__file__).parents[2].parent / "shared" / "data")) / "cpu_avx2"
pytestmark = pytest.mark.skipif(not DATA.is_dir(), reason="no data: set DETENT_DATA")

FLOAT_IN_NCNN = ("attention_scores", "transposed")
"""A product of two activations, and a transposed convolution, which are left in float."""


def folders(backend: str) -> list[str]:
    return sorted(folder.name for folder in DATA.glob(f"*.{backend}"))


def outputs(folder: str, arithmetic: str) -> list[tuple[np.ndarray, np.ndarray]]:
    """(simulated, recorded) of each output."""
    model = onnx.load(DATA / folder / "model.onnx")
    with np.load(DATA / folder / "engine.npz") as recorded:
        found = Twin(model, ARITHMETICS[arithmetic]("avx2")).run({model.graph.input[0].name: recorded["input"]})
        return [(value, recorded[f"output.{name}"].reshape(value.shape)) for name, value in found.items()]


@pytest.mark.parametrize("arithmetic", ["fbgemm", "onednn"])
@pytest.mark.parametrize("folder", folders("torch_x86"))
def test_torch(folder: str, arithmetic: str) -> None:
    """The engine x86 has FBGEMM do all of it on such a CPU."""
    for simulated, recorded in outputs(folder, arithmetic):
        assert np.array_equal(simulated, recorded)


@pytest.mark.parametrize("folder", folders("ncnn"))
def test_ncnn(folder: str) -> None:
    """What is left in float is off by a few units of the last place, as the claim says; 16 of the largest number."""
    for simulated, recorded in outputs(folder, "ncnn"):
        slack = 16 * np.spacing(np.abs(recorded).max()) if folder.startswith(FLOAT_IN_NCNN) else 0
        np.testing.assert_allclose(simulated, recorded, rtol=0, atol=slack)

"""The twin of each kind of CPU against what engines computed on such a CPU, as `tools/record_engines.py` stored it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import pytest

from detent.targets.arithmetics import ARITHMETICS
from detent.twin import Twin
from tests.cpus.nets import Case, codes, differences

GOLDEN = Path(__file__).parents[1] / "golden/cpus"


def names() -> list[Any]:
    found = []
    for path in sorted(GOLDEN.glob("*/*.npz")):
        with np.load(path) as file:
            cases = [name.removesuffix("/model") for name in file.files if name.endswith("/model")]
        found += [pytest.param(path, case, id=f"{path.parent.name}-{case}") for case in cases]
    return found


def part(file: Any, case: str, what: str) -> dict[str, npt.NDArray[Any]]:
    prefix = f"{case}/{what}/"
    return {name.removeprefix(prefix): file[name] for name in file.files if name.startswith(prefix)}


@pytest.mark.parametrize(("path", "case"), names())
def test_the_twin_computes_what_was_recorded(path: Path, case: str) -> None:
    with np.load(path) as file:
        about = json.loads(str(file["about"]))
        twin = Twin(
            onnx.load_from_string(file[f"{case}/model"].tobytes()), ARITHMETICS[about["arithmetic"]](about["cpu"])
        )
        inputs, outputs = part(file, case, "input"), part(file, case, "output")
    off = differences(outputs, codes(twin.graph, twin.run(inputs)))
    backend, net, bits = case.rsplit("-", 2)
    assert off.max() <= Case(backend, net, int(bits)).fitted, (
        f"{(off > 0).sum()} of {off.size} differ, by up to {off.max()}, from {about}"
    )


def test_saturation_was_recorded() -> None:
    """Else what is above says nothing of it: with 8 bits the twin of VNNI computes otherwise, with 7 bits the same."""
    with np.load(GOLDEN / "avx2/onnxruntime.npz") as file:
        for bits, equal in ((8, False), (7, True)):
            case = f"onnxruntime-convolutions-{bits}"
            twin = Twin(onnx.load_from_string(file[f"{case}/model"].tobytes()), ARITHMETICS["onnxruntime"]("vnni"))
            outputs = codes(twin.graph, twin.run(part(file, case, "input")))
            assert (not differences(part(file, case, "output"), outputs).any()) is equal

"""What engines gave on other CPUs, recorded there, is what the twin of that CPU computes everywhere.

A folder `cpu_<kind>` has small networks whose weights make pairs of products saturate, each as deployed for one engine,
with the inputs it was given and the outputs it gave.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import onnx
import pytest

from detent.targets.arithmetics import ARITHMETICS
from detent.twin import Twin

DATA = Path(os.environ.get("DETENT_DATA", Path(__file__).parents[2].parent / "shared" / "data"))
RECORDED = sorted(file.parent for file in DATA.glob("cpu_*/*/engine.npz"))
pytestmark = pytest.mark.skipif(not RECORDED, reason="no recorded answers: set DETENT_DATA")

SUMS = {"Conv", "ConvTranspose", "Gemm", "MatMul"}


@pytest.mark.parametrize("folder", RECORDED, ids=lambda folder: f"{folder.parent.name}-{folder.name}")
def test_the_twin_gives_what_the_engine_gave(folder: Path) -> None:
    name = json.loads((folder / "manifest.json").read_text())["arithmetic"]
    arithmetic = ARITHMETICS[name](folder.parent.name.removeprefix("cpu_"))
    model = onnx.load(str(folder / "model.onnx"))
    twin = Twin(model, arithmetic)
    with np.load(folder / "engine.npz") as held:
        recorded = dict(held)
    computed = twin.run({model.graph.input[0].name: recorded["input"]})
    expected = {name.removeprefix("output."): recorded[name] for name in recorded if name.startswith("output.")}
    assert expected.keys() == computed.keys()
    summed_in_float = any(step.ran_as == "float" and op.type in SUMS for step in twin.steps for op in step.ops)
    for output, values in expected.items():
        if summed_in_float:
            # Sums of at most 256 products in float32, in another order: two units in the last place were seen.
            assert np.abs(computed[output] - values).max() <= 4 * np.finfo(np.float32).eps * np.abs(values).max()
        else:
            assert np.array_equal(computed[output], values)

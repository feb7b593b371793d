"""The twin of OpenVINO beside OpenVINO, on the IR that Detent writes for a net."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from detent.ir import Package
from detent.targets.base import Deployment
from detent.targets.openvino.arithmetic.openvino import OpenVino
from detent.targets.openvino.engine import OpenVino as Engine
from detent.targets.openvino.ir_file import FORMAT
from detent.targets.openvino.spec import OPENVINO
from detent.twin import Twin
from tests.twin.builder import Net

UINT8, INT8 = {"activation": "uint8"}, {"activation": "int8", "symmetric": True}
STYLES = [pytest.param(UINT8, id="uint8"), pytest.param(INT8, id="int8-symmetric")]


def package(net: Net, folder: Path) -> Package:
    deployment = Deployment(name="net", backend=OPENVINO, model=net.model, tensors=())
    files = {"model.onnx": net.model.SerializeToString(), **FORMAT.write(deployment).files}
    for name, content in files.items():
        (folder / name).write_bytes(content)
    return Package(folder, {"files": dict.fromkeys(files, "")})


def distances(net: Net, folder: Path) -> np.ndarray:
    """How far the outputs of the twin are from the engine's, in LSB (in 1e-6 of the largest for float outputs)."""
    deployed = package(net, folder)
    engine, twin = Engine.load(deployed).run(net.feeds), Twin(deployed, OpenVino()).run(net.feeds)
    found = []
    for output in deployed.graph.outputs:
        mine, theirs, grid = twin[output.name], engine[output.name], output.read.encoding
        if grid is None:
            found.append(np.abs(mine - theirs) > 1e-6 * np.abs(theirs).max())
        else:
            found.append(np.abs(grid.quantize(mine) - grid.quantize(theirs)))
    return np.concatenate([each.reshape(-1) for each in found])

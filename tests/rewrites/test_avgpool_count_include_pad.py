"""Average pools whose padding counts give the same integers with the padding before them, and the right ones on
OpenVINO."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from detent.ir import Network, Package, write_qdq
from detent.targets.base import Deployment
from detent.targets.openvino.engine import OpenVino
from detent.targets.openvino.ir_file import FORMAT
from detent.targets.openvino.spec import OPENVINO
from detent.targets.rewrites import legalize
from tests.rewrites.quantized_op import RELU, Writing, X, Y, run, types

REWRITE = ("avgpool_count_include_pad",)
COUNTED: dict[str, Any] = {"kernel_shape": [2, 4], "strides": [1, 2], "pads": [1, 0, 0, 2], "count_include_pad": 1}


def network(*, relu: bool = False, zero_point: int = X[2], **attributes: Any) -> Network:
    w = Writing()
    w.node("AveragePool", [w.on_grid(X[0], X[1], zero_point)], "pool" if relu else "y", **(attributes or COUNTED))
    if relu:
        w.node("Relu", ["pool"], "y")
    return w.network(("n", 3, 6, 8), w.on_grid(*(RELU if relu else Y)))


def images() -> np.ndarray:
    return np.random.default_rng(1).normal(0, 4, (2, 3, 6, 8)).astype(np.float32)


@pytest.mark.parametrize("relu", [False, True])
def test_the_same_integers(relu: bool) -> None:
    before = network(relu=relu)
    after = legalize(before, REWRITE)
    assert types(after) == ["Pad", "AveragePool", *(["Relu"] if relu else [])]
    np.testing.assert_array_equal(run(after, images()), run(before, images()))


@pytest.mark.parametrize(
    "changed",
    [{"count_include_pad": 0}, {"pads": [0] * 4}, {"pads": [], "auto_pad": "SAME_UPPER"}],
    ids=["not counted", "no padding", "auto pad"],
)
def test_others_stay(changed: dict[str, Any]) -> None:
    attributes = {name: value for name, value in {**COUNTED, **changed}.items() if value != []}
    assert types(legalize(network(**attributes), REWRITE)) == ["AveragePool"]


def test_unsigned_codes_with_zero_point_0_stay() -> None:
    assert types(legalize(network(zero_point=0), REWRITE)) == ["AveragePool"]


def test_openvino_pads_with_real_zero(tmp_path: Path) -> None:
    pytest.importorskip("openvino", reason="pip install 'detent[openvino]'")

    def most_steps_off(network: Network) -> float:
        model = write_qdq(network)
        files = FORMAT.write(Deployment(name="net", backend=OPENVINO, model=model, tensors=())).files
        for name, content in {"model.onnx": model.SerializeToString(), **files}.items():
            (tmp_path / name).write_bytes(content)
        engine = OpenVino.load(Package(tmp_path, {"files": dict.fromkeys(["model.onnx", *files], "")}))
        return float(np.abs(next(iter(engine.run({"x": images()}).values())) - run(network, images())).max() / Y[1])

    pool = network()
    assert most_steps_off(legalize(pool, REWRITE)) == 0
    assert most_steps_off(pool) > 5  # else OpenVINO was mended, and the rewrite can go

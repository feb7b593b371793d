"""What goes into a runtime: the names, shapes and types of the network, or an error that says which input is not so."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import detent
from detent.errors import EngineError, TensorError
from detent.ir import Port
from detent.targets.base.ports import given
from detent.targets.engines import ENGINES
from detent.twin import run

PORTS = {"ids": Port("int64", ("batch", 3)), "x": Port("float32", ("batch",))}
IDS = np.array([[1, 2, 3]])


class Tokens(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(8, 4), nn.Linear(4, 2)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.head(self.embedding(ids))
        return out


@pytest.mark.parametrize("dtype", ["int8", "int32", "uint8"])
def test_whole_numbers_of_another_width_are_the_same(dtype: str) -> None:
    found = given(PORTS, {"x": np.ones(1), "ids": IDS.astype(dtype)}, engine="any")
    assert list(found) == ["ids", "x"]
    assert found["ids"].dtype == np.int64
    assert found["ids"].tolist() == [[1, 2, 3]]
    assert found["x"].dtype == np.float32


def test_whole_numbers_may_become_real_ones() -> None:
    assert given({"x": PORTS["x"]}, {"x": np.array([3])}, engine="any")["x"].tolist() == [3.0]


@pytest.mark.parametrize(
    ("port", "array", "dtype"),
    [
        ("int64", [1.0, 2.0], "float64"),
        ("int64", np.ones(2, np.float16), "float16"),
        ("uint8", [1, 256], "int64"),
        ("int32", [1, 2**31], "int64"),
        ("bool", [0, 2], "int64"),
        ("float32", ["a", "b"], "<U1"),
    ],
    ids=["real-for-whole", "half-for-whole", "byte", "int32", "bool", "text"],
)
def test_numbers_that_the_type_does_not_hold_are_refused(port: str, array: object, dtype: str) -> None:
    with pytest.raises(EngineError) as caught:
        given({"ids": Port(port, (2,))}, {"ids": np.asarray(array)}, engine="any")
    assert caught.value.asked == f"run on any with 'ids' of {dtype}"
    assert caught.value.found == f"the network takes {port}, which does not hold these numbers"
    assert caught.value.to_do == f"give it as {port}"


def test_a_single_number_stays_one() -> None:
    assert given({"x": Port("float32", ())}, {"x": np.float64(2)}, engine="any")["x"].shape == ()


@pytest.mark.parametrize("backend", ["onnxruntime", "openvino", "litert", "ncnn", "torch_x86"])
def test_token_ids_that_are_real_numbers_are_refused_everywhere(backend: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    prepared = detent.prepare(Tokens().eval(), [torch.from_numpy(IDS)], backend=backend)
    detent.calibrate(prepared, [torch.from_numpy(IDS)])
    artifact = detent.deploy(prepared, tmp_path / "out")
    (name,) = artifact.graph.inputs
    engine = ENGINES[str(artifact.manifest["engine"])].load(artifact)
    assert next(iter(engine.run({name: IDS}).values())).shape == (1, 3, 2)
    with pytest.raises(EngineError, match=f"'{name}' of float32\\s.*takes int64"):
        engine.run({name: IDS.astype(np.float32)})
    with pytest.raises(TensorError, match=f"'{name}' of float32\\s.*takes int64"):
        run(artifact, {name: IDS.astype(np.float32)}, arithmetic="onnx_spec")

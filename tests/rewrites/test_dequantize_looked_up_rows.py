"""Tables of rows are stored as codes, and the rows that are looked up are dequantized, not the table."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from onnx import helper, numpy_helper
from torch import Tensor, nn

import detent
from detent.ir import Network, read_qdq, write_qdq
from detent.rewrites.dequantize_looked_up_rows import with_whole_tables
from detent.targets.rewrites import legalize
from tests.deployment.float_path import float_path
from tests.rewrites.quantized_op import types

REWRITE = ("dequantize_looked_up_rows",)
IDS = np.array([[3, 0, -1], [2, 2, 1]])


def network(dtype: str = "int8", *, rows: bool = True, zero_point: int = 0, axis: int = 0) -> Network:
    """A table of 5 rows of 4, looked up along `axis`, with a scale for each row or one for all."""
    rng = np.random.default_rng(0)
    scale = rng.random(5).astype(np.float32) + 0.1 if rows else np.float32(0.3)
    held = {
        "table_quantized": rng.integers(0, 127, (5, 4)).astype(dtype),
        "table_scale": scale,
        "table_zero_point": np.full(np.shape(scale), zero_point, dtype),
    }
    along = {"axis": 0} if rows else {}
    nodes = [
        helper.make_node("DequantizeLinear", list(held), ["table"], **along),
        helper.make_node("Gather", ["table", "ids"], ["y"], name="looked_up", axis=axis),
    ]
    graph = helper.make_graph(
        nodes,
        "one",
        [helper.make_tensor_value_info("ids", onnx.TensorProto.INT64, ("n", 3))],
        [helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, None)],
        [numpy_helper.from_array(np.asarray(value), name) for name, value in held.items()],
    )
    return read_qdq(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10))


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        (network(), ["Gather", "Cast", "Gather", "Mul"]),
        (network(rows=False), ["Gather", "Cast", "Mul"]),
        (network("uint8", zero_point=100), ["Gather", "Cast", "Gather", "Sub", "Gather", "Mul"]),
    ],
    ids=["rows", "one scale", "zero points"],
)
def test_the_numbers_are_the_same(given: Network, wanted: list[str]) -> None:
    after = legalize(given, REWRITE)
    assert types(after) == wanted
    ids = torch.from_numpy(IDS)
    before, found = (float_path(write_qdq(each), [ids])[0] for each in (given, after))
    np.testing.assert_array_equal(found, before)
    assert {held.dtype.name for held in after.constants.values() if held.shape == (5, 4)} <= {"int8", "uint8"}

    again = with_whole_tables(after)
    assert types(again) == ["Gather"]
    (op,), (expected,) = again.ops, given.ops
    assert op.reads[0].encoding == expected.reads[0].encoding
    np.testing.assert_array_equal(again.constants[op.reads[0].tensor], given.constants["table"])


def test_columns_are_left_alone() -> None:
    given = network(axis=1)
    assert legalize(given, REWRITE) is given


class Language(nn.Module):
    def __init__(self, *, tied: bool) -> None:
        super().__init__()
        self.words, self.places, self.norm = nn.Embedding(50, 16), nn.Embedding(12, 16), nn.LayerNorm(16)
        self.head = nn.Linear(16, 50, bias=False)
        if tied:
            self.head.weight = self.words.weight

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.norm(self.words(ids) + self.places.weight[: ids.shape[1]]))


@pytest.mark.parametrize("tied", [False, True], ids=["own head", "tied"])
@pytest.mark.parametrize("backend", ["onnxruntime", "openvino", "litert"])
def test_the_engine_gives_what_was_simulated(backend: str, tied: bool, tmp_path: Path) -> None:
    pytest.importorskip({"litert": "ai_edge_litert"}.get(backend, backend), reason=f"pip install 'detent[{backend}]'")
    torch.manual_seed(0)
    net, ids = Language(tied=tied).eval(), torch.randint(0, 50, (2, 12))
    prepared = detent.prepare(net, (ids,), backend=backend)
    assert "words.weight" in {entry.tensor for entry in prepared.plan.quantized}
    detent.calibrate(prepared, [ids])
    artifact = detent.deploy(prepared, tmp_path / "out")
    verdict = artifact.verify([ids], latency=False)
    assert verdict.holds, verdict
    assert {one.what: one for one in verdict.outputs}["simulation vs engine"].differing == 0
    if backend == "onnxruntime":
        assert any("dequantized behind it" in line for line in str(verdict).splitlines())
    stored = onnx.load(tmp_path / "out" / "model.onnx").graph.initializer
    assert all(held.data_type == onnx.TensorProto.INT8 for held in stored if tuple(held.dims) == (50, 16))

    # The file is read as the model was: with one lookup in a table that is on a grid.
    loaded = detent.load(tmp_path / "out" / "model.onnx")
    assert [name for name, module in loaded.named_modules() if isinstance(module, nn.Embedding)] == ["words"]
    again = detent.prepare(loaded, (ids,), backend=backend)
    torch.testing.assert_close(again(ids), prepared(ids), rtol=0, atol=0)


def test_a_wrong_scale_is_found(tmp_path: Path) -> None:
    torch.manual_seed(0)
    net, ids = Language(tied=False).eval(), torch.randint(0, 50, (2, 12))
    prepared = detent.prepare(net, (ids,), backend="onnxruntime")
    detent.calibrate(prepared, [ids])
    artifact = detent.deploy(prepared, tmp_path / "out")
    path = tmp_path / "out" / "model.onnx"
    model = onnx.load(path)
    (scales,) = (held for held in model.graph.initializer if tuple(held.dims) == (50, 1))
    changed = numpy_helper.to_array(scales).copy()
    changed[7] *= 2
    scales.CopyFrom(numpy_helper.from_array(changed, scales.name))
    onnx.save(model, path)
    verdict = artifact.verify([ids], latency=False)
    assert any("words.weight" in problem and "channel 7" in problem for problem in verdict.problems), verdict

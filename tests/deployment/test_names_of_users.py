"""A user's tensor may have any name: none of them tells Detent anything."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper, save
from torch import nn

import detent


def net() -> object:
    """Every tensor has a name that Detent gives tensors of its own."""
    draw = np.random.default_rng(0)
    weights = {
        "w_transposed": draw.normal(size=(8, 3, 3, 3)).astype(np.float32) / 4,
        "w_phases": draw.normal(size=(8, 8, 1, 1)).astype(np.float32) / 2,
        "low": np.float32(-1.5),
        "high": np.float32(1.5),
    }
    nodes = [
        helper.make_node("Clip", ["x", "low", "high"], ["x_clipped"], name="clip"),
        helper.make_node("Conv", ["x_clipped", "w_transposed"], ["y_quantized"], name="one", pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["y_quantized"], ["y_dequantized"], name="relu"),
        helper.make_node("Conv", ["y_dequantized", "w_phases"], ["x_unquantized"], name="two"),
    ]
    ends = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)
        for name, shape in (("x", ["n", 3, 8, 8]), ("x_unquantized", ["n", 8, 8, 8]))
    ]
    held = [numpy_helper.from_array(np.asarray(value), name) for name, value in weights.items()]
    graph = helper.make_graph(nodes, "net", ends[:1], ends[1:], held)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.mark.parametrize(("backend", "bits"), [("onnxruntime", 8), ("openvino", 7), ("academic", 6), ("tensorrt", 8)])
def test_an_imported_network(backend: str, bits: int, tmp_path: Path) -> None:
    """6 bits have codes that the type does not use."""
    if backend == "openvino":
        pytest.importorskip("openvino")
    save(net(), tmp_path / "net.onnx")
    batches = [torch.randn(4, 3, 8, 8, generator=torch.Generator().manual_seed(seed)) * 2 for seed in range(2)]
    recipe = {"name": "narrow", "weight": {"bits": bits}, "activation": {"bits": 6 if bits == 6 else 8}}
    prepared = detent.prepare(
        detent.load(tmp_path / "net.onnx"), (batches[0],), backend=backend, recipe=detent.Recipe.from_dict(recipe)
    )
    detent.calibrate(prepared, batches)
    artifact = detent.deploy(prepared, tmp_path / "out")
    graph = artifact.graph
    assert [(op.type, op.outputs[0]) for op in graph.ops][:3] == [
        ("Clip", "x_clipped"),
        ("Conv", "y_quantized"),
        ("Relu", "y_dequantized"),
    ]
    assert [op.inputs[1].tensor for op in graph.ops if op.type == "Conv"] == ["w_transposed", "w_phases"]
    assert {tensor["tensor"] for tensor in artifact.manifest["tensors"]} >= {"w_transposed", "w_phases", "x_clipped"}
    assert artifact.verify(batches).holds


class Odd(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc_quantized, self.fc_transposed = nn.Linear(6, 5), nn.Linear(5, 4)

    def forward(self, x_clipped):
        return self.fc_transposed(self.fc_quantized(x_clipped).relu())


def test_a_torch_module(tmp_path: Path) -> None:
    torch.manual_seed(0)
    batches = [torch.randn(8, 6) for _ in range(2)]
    prepared = detent.prepare(Odd().eval(), (batches[0],), backend="onnxruntime")
    detent.calibrate(prepared, batches)
    artifact = detent.deploy(prepared, tmp_path / "out")
    stored = {tensor["tensor"] for tensor in artifact.manifest["tensors"] if tensor["role"] == "weight"}
    assert stored == {"fc_quantized.weight", "fc_transposed.weight"}
    assert artifact.verify(batches).holds

"""Layers that a recipe keeps float, which ONNX Runtime would give weights of 8 bits."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper
from torch import Tensor, nn

import detent
from detent.recipes import find


class Products(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(8, 16), nn.Linear(16, 4)
        self.middle = nn.Linear(16, 16)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(torch.relu(self.middle(torch.relu(self.first(x)))))


def _convs(middle: nn.Module) -> Callable[[], nn.Module]:
    return lambda: nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), middle, nn.ReLU(), nn.Conv2d(8, 4, 3))


NETS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...], str]] = {
    "conv": (_convs(nn.Conv2d(8, 8, 3)), (4, 3, 12, 12), "2"),
    "conv without a bias": (_convs(nn.Conv2d(8, 8, 3, bias=False)), (4, 3, 12, 12), "2"),
    "depthwise": (_convs(nn.Conv2d(8, 8, 3, groups=8)), (4, 3, 12, 12), "2"),
    "transposed": (_convs(nn.ConvTranspose2d(8, 8, 3, groups=2, bias=False)), (4, 3, 12, 12), "2"),
    "linear": (Products, (32, 8), "middle"),
    "linear on sequences": (Products, (4, 8, 8), "middle"),
}


@pytest.mark.parametrize("name", NETS)
def test_a_layer_that_is_excluded_runs_in_float(name: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    make, shape, excluded = NETS[name]
    x = torch.randn(shape)
    net = make().eval()
    recipe = find("ptq").model_copy(update={"exclude": (excluded,)})
    prepared = detent.prepare(net, (x,), backend="onnxruntime", recipe=recipe)
    detent.calibrate(prepared, [x])
    verdict = detent.deploy(prepared, tmp_path / "out").verify([x], latency=False)
    assert verdict.holds, verdict
    # Operation by operation: 4 to 60 % where its weights have 8 bits. A tie may go either way, and spreads to outputs.
    assert all(one.rate < 0.01 for one in verdict.tensors), verdict


def test_a_product_and_an_addition_of_a_file_stay_float(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    held = {name: rng.standard_normal(shape).astype(np.float32) for name, shape in (("v", (8, 8)), ("w", (8, 8)))}
    held["b"] = rng.standard_normal(8).astype(np.float32)
    nodes = [
        helper.make_node("MatMul", ["x", "v"], ["first"], name="/first"),
        helper.make_node("Relu", ["first"], ["positive"], name="/relu"),
        helper.make_node("MatMul", ["positive", "w"], ["second"], name="/second"),
        helper.make_node("Add", ["second", "b"], ["added"], name="/add"),
        helper.make_node("Sigmoid", ["added"], ["y"], name="/sigmoid"),
    ]
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["N", 8]) for name in "xy"]
    constants = [numpy_helper.from_array(array, name) for name, array in held.items()]
    graph = helper.make_graph(nodes, "net", ends[:1], ends[1:], constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    recipe = find("ptq").model_copy(update={"exclude": ("/second",)})
    x = torch.from_numpy(rng.standard_normal((32, 8)).astype(np.float32))
    artifact = detent.quantize(model, [x], backend="onnxruntime", recipe=recipe, folder=tmp_path / "out")
    verdict = artifact.verify([x], latency=False)
    assert verdict.holds, verdict
    assert all(one.rate < 0.01 for one in verdict.tensors), verdict

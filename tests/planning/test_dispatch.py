"""Which operations run on grids, in float or on sizes; and recipes that name the nodes of a file as the file does."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from onnx import ModelProto, TensorProto, helper, numpy_helper
from torch import fx

from detent import load
from detent.errors import RecipeError
from detent.planning.sizes import sizes
from detent.planning.view import GraphView
from detent.preparing import prepare
from detent.recipes import Match, Recipe, Rule, find


def scaled_by_its_shape() -> ModelProto:
    """Twice the size, computed in real numbers, as exporters write an interpolation by a factor."""
    make = helper.make_node
    nodes = [
        make("Conv", ["x", "w"], ["c"], name="/stem/Conv", pads=[1, 1, 1, 1]),
        make("Relu", ["c"], ["a"], name="/stem/Relu"),
        make("Shape", ["a"], ["s"], name="/up/Shape"),
        make("Slice", ["s", "two", "four"], ["hw"], name="/up/Slice"),
        make("Cast", ["hw"], ["real"], name="/up/Cast", to=TensorProto.FLOAT),
        make("Mul", ["real", "factor"], ["twice"], name="/up/Mul"),
        make("Floor", ["twice"], ["down"], name="/up/Floor"),
        make("Cast", ["down"], ["whole"], name="/up/Cast_1", to=TensorProto.INT64),
        make("Slice", ["s", "zero", "two"], ["nc"], name="/up/Slice_1"),
        make("Concat", ["nc", "whole"], ["sizes"], name="/up/Concat", axis=0),
        make("Resize", ["a", "", "", "sizes"], ["u"], name="/up/Resize"),
        make("Conv", ["u", "v"], ["y"], name="/head/Conv"),
    ]
    dice = np.random.default_rng(0)
    held: dict[str, Any] = {
        "w": dice.standard_normal((4, 3, 3, 3)).astype(np.float32),
        "v": dice.standard_normal((2, 4, 1, 1)).astype(np.float32),
        "factor": np.float32(2),
        **{name: np.array([number]) for name, number in (("zero", 0), ("two", 2), ("four", 4))},
    }
    graph = helper.make_graph(
        nodes,
        "net",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 3, "h", "w"])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(value, name) for name, value in held.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def planned(recipe: Recipe | str = "ptq", backend: str = "tensorrt") -> Any:
    graph = load(scaled_by_its_shape())
    return prepare(graph, (torch.randn(1, 3, 6, 6),), backend=backend, recipe=recipe).plan


def runs(plan: Any) -> dict[str, str]:
    return {op.op: op.runs for op in plan.ops}


@pytest.mark.parametrize("backend", ["onnxruntime", "openvino", "tensorrt", "vitis"])
def test_sizes_in_real_numbers_are_on_no_grid(backend: str) -> None:
    plan = planned(backend=backend)
    assert [plan[name].reason for name in ("real", "twice", "down")] == ["a size or a position"] * 3
    found = runs(plan)
    assert [name for name, how in found.items() if how == "shape"] == [
        "/up/Shape", "/up/Slice", "/up/Cast", "/up/Mul", "/up/Floor", "/up/Cast_1", "/up/Slice_1", "/up/Concat",
    ]  # fmt: skip
    assert found["/stem/Conv"] == found["/stem/Relu"] == found["/head/Conv"] == "quantized"


def test_positions_that_are_made_of_a_shape_and_added_are_no_sizes() -> None:
    class Positions(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = torch.nn.Linear(4, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.fc(x + torch.ones(x.shape[-1]) * 0.5)

    plan = prepare(Positions().eval(), (torch.randn(2, 4),), backend="onnxruntime").plan
    assert all(getattr(entry, "reason", "") != "a size or a position" for entry in plan)


@pytest.mark.parametrize("whole", [True, False])
def test_constants_that_become_whole_numbers_are_on_no_grid(whole: bool) -> None:
    """On one, DeBERTa puts distances of 9 and of 11 into one bucket."""
    graph = fx.Graph()
    step = graph.call_function(torch.tensor, (4.0,))
    logarithm = graph.call_function(torch.log, (step,))
    made = graph.call_method("to", (logarithm, torch.long if whole else torch.float64))
    graph.output(made)
    for node, is_real in ((step, True), (logarithm, True), (made, not whole)):
        node.meta["is_real"] = is_real
    found = sizes(GraphView("", torch.nn.Module(), graph, ()))
    assert found == (dict.fromkeys((step, logarithm), "a size or a position") if whole else {})


def test_the_table_of_operations_says_why() -> None:
    text = planned(find("ptq").replace(exclude=("/head/Conv",))).dispatch()
    line = next(line for line in text.splitlines() if line.startswith("/head/Conv"))
    assert line.split()[:3] == ["/head/Conv", "Conv", "float"]
    assert "the recipe excludes it" in line
    assert text.splitlines()[-1] == "operations: 2 quantized, 8 shape, 2 float"  # with the Resize
    assert planned().to_dict()["operations"][0] == {"op": "/stem/Conv", "kind": "Conv", "runs": "quantized", "why": ""}


@pytest.mark.parametrize(
    ("exclude", "left"),
    [
        (("/head/Conv",), {"/stem/Conv"}),
        (("/stem/*",), {"/head/Conv"}),
        (("head_Conv",), {"/stem/Conv"}),
        (("Resize",), {"/stem/Conv", "/head/Conv"}),
    ],
    ids=["name", "glob", "layer", "type"],
)
def test_nodes_are_excluded_by_their_name_or_type_in_the_file(exclude: tuple[str, ...], left: set[str]) -> None:
    found = runs(planned(find("ptq").replace(exclude=exclude)))
    assert {name for name in ("/stem/Conv", "/head/Conv") if found[name] == "quantized"} == left


def test_all_of_a_type_may_be_excluded_and_nothing_is_left() -> None:
    with pytest.raises(RecipeError, match="nothing in it would be quantized"):
        planned(find("ptq").replace(exclude=("Conv",)))


def test_rules_match_names_and_types_of_the_file_too() -> None:
    rule = Rule(match=Match(name="/head/*", kind="Conv"), weight={"bits": 4})
    plan = planned(find("ptq").replace(rules=(rule,)), backend="academic")
    assert [plan[f"{name}.weight"].scheme.grid.bits for name in ("stem_Conv", "head_Conv")] == [8, 4]


def test_a_name_that_the_file_does_not_have_is_an_error() -> None:
    with pytest.raises(RecipeError, match="/haed/Conv"):
        planned(find("ptq").replace(exclude=("/haed/Conv",)))


def test_a_module_without_a_rule_says_so():
    net = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Tanhshrink(), torch.nn.Linear(4, 2)).eval()
    ops = {op.op: (op.runs, op.why) for op in prepare(net, (torch.zeros(2, 4),), backend="litert").plan.ops}
    assert ops["1"] == ("float", "Tanhshrink is not an operation Detent knows")


def test_a_sum_that_a_convolution_is_fused_into_is_quantized() -> None:
    """OpenVINO computes the first addend inside of the sum: that tensor is float, the sum is not."""

    class Residual(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv1, self.conv2 = torch.nn.Conv2d(3, 3, 1), torch.nn.Conv2d(3, 3, 1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = self.conv1(x).relu()
            return (self.conv2(x) + x).relu().flatten(1) @ torch.ones(12, 2)

    plan = prepare(Residual().eval(), (torch.randn(1, 3, 2, 2),), backend="openvino").plan
    assert plan["conv2"].reason == "openvino fuses it into add"
    assert {name: how for name, how in runs(plan).items() if name.startswith(("conv", "add"))} == {
        "conv1": "quantized", "conv2": "quantized", "add": "quantized",
    }  # fmt: skip

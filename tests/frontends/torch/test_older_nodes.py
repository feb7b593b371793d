"""Operations that torch's exporter writes, in files of opsets that it does not write."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import onnx
import pytest
import torch
import torch.nn.functional as F
from onnx import helper
from torch import Tensor, nn

import detent
from detent.frontends.torch.older_nodes import NeedsOpsetError, lowered

FUNCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "largest": lambda x: x.max(1, keepdim=True)[0],
    "variance": lambda x: x.var(1, keepdim=True, unbiased=False),
    "length": lambda x: F.normalize(x, dim=1),
    "logsumexp": lambda x: torch.logsumexp(x, 1),
    "glu": lambda x: F.glu(x, 1),
    "fold": lambda x: F.fold(F.unfold(x, 2, stride=2), (8, 8), 2, stride=2),
}


class Behind(nn.Module):
    def __init__(self, function: Callable[[Tensor], Tensor]):
        super().__init__()
        self.conv, self.function = nn.Conv2d(3, 4, 3, padding=1), function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(self.conv(x))


@pytest.mark.few(2)
@pytest.mark.parametrize("what", FUNCTIONS)
def test_a_file_of_opset_17_is_valid_and_computes_what_was_simulated(what: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    x = torch.randn(2, 3, 8, 8)
    prepared = detent.prepare(Behind(FUNCTIONS[what]).eval(), (x,), backend="tensorrt")
    detent.calibrate(prepared, [x])
    artifact = detent.deploy(prepared, tmp_path / "out")
    onnx.checker.check_model(artifact.model, full_check=True)
    # Col2Im came with 18, and a note says that the file is newer.
    newer = what == "fold"
    assert artifact.model.opset_import[0].version == (18 if newer else 17)
    assert any("opset 18: Col2Im" in note for note in artifact.manifest["notes"]) == newer
    assert artifact.verify([x], latency=False).holds


def test_axes_that_are_computed_have_no_older_form() -> None:
    node = helper.make_node("ReduceMax", ["x", "axes"], ["y"])
    graph = helper.make_graph([node], "g", [], [])
    with pytest.raises(NeedsOpsetError, match="ReduceMax"):
        lowered(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)]), 17)


def test_a_split_in_parts_of_one_size_does_not_say_how_many() -> None:
    node = helper.make_node("Split", ["x"], ["a", "b"], num_outputs=2, axis=1)
    graph = helper.make_graph([node], "g", [], [])
    made = lowered(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)]), 17)
    assert [attribute.name for attribute in made.graph.node[0].attribute] == ["axis"]
    assert made.opset_import[0].version == 17

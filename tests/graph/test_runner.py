"""An operation that cannot be run: the error says which one, of what type, on what, and what to do."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from onnx import ModelProto, TensorProto, helper, numpy_helper
from torch import Tensor, nn

import detent
from detent.errors import CaptureError, DataError, DetentError, RunError


class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(50, 8)
        self.head = nn.Linear(8, 3)

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.words(ids))


GOOD = torch.arange(7).reshape(1, 7)
IDS = [pytest.param(-1, "ids from -1 to 6", id="negative"), pytest.param(50, "ids from 0 to 50", id="too-large")]


def with_id(number: int) -> Tensor:
    """Six good ones, and this."""
    return torch.tensor([[number, 1, 2, 3, 4, 5, 6]]) if number < 0 else torch.tensor([[0, 1, 2, 3, 4, 5, number]])


def tagger():
    torch.manual_seed(0)
    return detent.prepare(Tagger().eval(), (GOOD,), backend="onnxruntime")


def text(error: DetentError) -> str:
    return f"{error.asked} | {error.found} | {error.to_do}"


@pytest.mark.parametrize(("number", "found"), IDS)
def test_ids_that_a_table_has_no_row_for_are_named_with_the_rows_it_has(number, found):
    prepared, ids = tagger(), with_id(number)
    expected = f"run 'words' (Embedding) on the input 'ids', int64 (1, 7) | {found}; its rows are 0 to 49"
    with pytest.raises(RunError) as caught:
        detent.calibrate(prepared, [ids])
    assert text(caught.value) == f"{expected} | give ids from 0 to 49"
    detent.calibrate(prepared, [GOOD])
    with pytest.raises(RunError) as caught:
        prepared(ids)
    assert text(caught.value) == f"{expected} | give ids from 0 to 49"
    assert isinstance(caught.value.__cause__, IndexError)


@pytest.mark.parametrize(("number", "found"), IDS)
def test_so_are_those_of_example_inputs(number, found):
    with pytest.raises(CaptureError, match=f"in 'words' \\(Embedding\\): {found}; its rows are 0 to 49"):
        detent.prepare(Tagger(), (with_id(number),), backend="onnxruntime")


def test_and_those_that_are_verified(tmp_path):
    prepared = tagger()
    detent.calibrate(prepared, [GOOD])
    artifact = detent.deploy(prepared, tmp_path / "out")
    with pytest.raises(RunError, match="ids from 0 to 50; its rows are 0 to 49"):
        artifact.verify([with_id(50)], latency=False)
    with pytest.raises(RunError, match=r"run 'words/Gather' \(Gather\) on .*int64 \(1, 7\) of 0 to 50"):
        detent.twin.run(tmp_path / "out", {"ids": with_id(50).numpy()})


def test_the_layer_and_what_it_was_given_are_named():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Conv2d(4, 2, 1)).eval()
    prepared = detent.prepare(net, (torch.randn(2, 3, 6, 6),), backend="onnxruntime")
    for model in (prepared, copy.deepcopy(prepared)):
        with pytest.raises(RunError, match=r"run '0' \(Conv2d\) on .*float32 \(2, 4, 6, 6\)") as caught:
            detent.calibrate(model, [torch.randn(2, 4, 6, 6)])
        assert "expected input[2, 4, 6, 6] to have 3 channels" in caught.value.found


def test_errors_of_a_users_own_class_stay_what_they_are():
    class TooBrightError(RuntimeError):
        pass

    class Lamp(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            if not isinstance(x, torch.fx.Proxy) and float(x.max()) > 1:
                raise TooBrightError
            return x * 2

    net = nn.Sequential(Lamp(), nn.Linear(3, 2))
    prepared = detent.prepare(net, (torch.zeros(2, 3),), backend="onnxruntime", leaf_modules=[Lamp])
    with pytest.raises(TooBrightError):
        detent.calibrate(prepared, [torch.full((2, 3), 5.0)])


@pytest.mark.parametrize("batch", [{"pixels": GOOD}, {"ids": GOOD, "mask": GOOD}, {}])
def test_a_batch_of_other_names_is_refused_with_those_the_network_has(batch):
    with pytest.raises(DataError, match="the network takes ids"):
        detent.calibrate(tagger(), [batch])


def imported(op_type: str, constants: dict[str, np.ndarray], **attributes) -> ModelProto:
    node = helper.make_node(op_type, ["x", *constants], ["y"], name="the node", **attributes)
    graph = helper.make_graph(
        [node],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 1, 4, 4])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(value, name) for name, value in constants.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)


FILES = [
    pytest.param("Pad", {"p": np.array([0, 0, -3, -3, 0, 0, -3, -3])}, "length must be non-negative", id="pads"),
    pytest.param("Conv", {"w": np.zeros((2, 1, 9, 9), np.float32)}, "Kernel size can't be greater", id="kernel"),
    pytest.param("TopK", {"k": np.array([99])}, "exceeds dimension size", id="more-than-there-are"),
    pytest.param("Reshape", {"s": np.array([7, -1])}, "is invalid for input of size 16", id="size"),
    pytest.param(
        "ScatterND",
        {"i": np.array([[9, 9, 9, 9]]), "u": np.ones(1, np.float32)},
        "an index is outside of axis 0",
        id="index",
    ),
]


@pytest.mark.parametrize(("op_type", "constants", "found"), FILES)
def test_a_node_of_a_file_is_named_as_in_the_file(op_type, constants, found):
    graph = detent.load(imported(op_type, constants))
    with pytest.raises(
        RunError, match=rf"run 'the node' \({op_type}\) on the input 'x', float32 \(1, 1, 4, 4\)"
    ) as caught:
        graph(torch.zeros(1, 1, 4, 4))
    assert found in caught.value.found


def test_a_batch_without_an_argument_that_the_example_named_is_an_error() -> None:
    class Masked(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 4)

        def forward(self, x: Tensor, *, mask: Tensor | None = None) -> Tensor:
            x = self.linear(x)
            return x if mask is None else x * mask.unsqueeze(-1)

    x, mask = torch.randn(2, 3, 4), torch.ones(2, 3)
    prepared = detent.prepare(Masked(), (x,), example_kwargs={"mask": mask}, backend="onnxruntime")
    for batch in (x, (x,), {"x": x}):
        with pytest.raises(DataError, match="without 'mask'"):
            detent.calibrate(prepared, [batch])
    detent.calibrate(prepared, [{"x": x, "mask": mask}])

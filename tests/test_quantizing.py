"""`detent.quantize`: a model, data and a target in; a deployed model out."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper
from torch import nn

import detent
from detent.errors import DataError, DetentError, OnnxError, RangeError, UnknownNameError
from detent.quantizing import STEPS


def file_of_a_network() -> onnx.ModelProto:
    weight = np.random.default_rng(0).standard_normal((4, 3, 3, 3)).astype(np.float32)
    nodes = [helper.make_node("Conv", ["x", "w"], ["c"], name="conv"), helper.make_node("Relu", ["c"], ["y"], name="r")]
    graph = helper.make_graph(
        nodes,
        "net",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 3, 6, 6])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["N", 4, 4, 4])],
        [numpy_helper.from_array(weight, "w")],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def images(count: int = 3) -> list[torch.Tensor]:
    torch.manual_seed(0)
    return [torch.randn(2, 3, 6, 6) for _ in range(count)]


def test_a_file_becomes_an_artifact_named_after_it(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    onnx.save(file_of_a_network(), "net.onnx")
    artifact = detent.quantize("net.onnx", images(), backend="onnxruntime")
    assert artifact.folder.name == "net-onnxruntime"
    assert artifact.verify(images(1), latency=False).holds


def test_a_module_a_model_in_memory_and_arrays_are_taken(tmp_path):
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU()).eval()
    arrays = [batch.numpy() for batch in images()]
    one = detent.quantize(net, arrays, backend="onnxruntime", folder=tmp_path / "module")
    two = detent.quantize(file_of_a_network(), arrays, backend="onnxruntime", folder=tmp_path / "proto")
    three = detent.quantize(
        file_of_a_network(), ({"x": array} for array in arrays), backend="onnxruntime", folder=tmp_path / "named"
    )
    assert one.verify(images(1), latency=False).holds
    assert (two.folder / "model.onnx").read_bytes().replace(b"proto", b"named") == (
        three.folder / "model.onnx"
    ).read_bytes()


def test_names_of_a_file_that_python_does_not_take_name_inputs(tmp_path):
    model = file_of_a_network()
    model.graph.input[0].name = model.graph.node[0].input[0] = "serving/input.1:0"
    batches = [{"serving/input.1:0": batch} for batch in images()]
    artifact = detent.quantize(model, batches, backend="onnxruntime", folder=tmp_path / "out")
    assert artifact.verify(batches[:1], latency=False).holds
    for wrong in ({"serving_input_1_0": images(1)[0]}, {**batches[0], "mask": images(1)[0]}):
        with pytest.raises(DataError, match=r"the network takes .serving/input\.1:0"):
            detent.quantize(model, [wrong], backend="onnxruntime", folder=tmp_path / "wrong")


def test_a_function_and_a_folder_of_arrays_are_taken(tmp_path):
    model = file_of_a_network()
    for index, batch in enumerate(images()):
        np.save(tmp_path / f"{index}.npy", batch.numpy())
    made = [
        detent.quantize(model, data, backend="onnxruntime", folder=tmp_path / "out" / str(index))
        for index, data in enumerate((images(), images, tmp_path, str(tmp_path)))
    ]
    scales = [{t["tensor"]: t["scale"] for t in artifact.manifest["tensors"]} for artifact in made]
    assert scales[1:] == scales[:1] * 3


def test_data_that_is_no_batches_is_an_error(tmp_path):
    for data in (3, lambda: 3):
        with pytest.raises(RangeError, match="a int, which is not a list of batches"):
            detent.quantize(file_of_a_network(), data, backend="onnxruntime", folder=tmp_path / "out")


def test_labels_behind_the_inputs_of_a_file_are_left_alone(tmp_path):
    labeled = [(batch, torch.zeros(2, dtype=torch.int64)) for batch in images()]
    artifact = detent.quantize(file_of_a_network(), labeled, backend="onnxruntime", folder=tmp_path / "out")
    assert len(artifact.graph.inputs) == 1


class Counted:
    """Batches that say how many of them were taken."""

    def __init__(self, count: int):
        self.count, self.taken = count, 0

    def __iter__(self):
        for _ in range(self.count):
            self.taken += 1
            yield torch.randn(2, 3, 6, 6)


def test_at_most_so_many_batches_are_used(tmp_path):
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU()).eval()
    few, many = Counted(10), Counted(2 * STEPS)
    detent.quantize(net, few, backend="onnxruntime", folder=tmp_path / "few", steps=3)
    detent.quantize(net, many, backend="onnxruntime", folder=tmp_path / "many")
    assert (few.taken, many.taken) == (3, STEPS)


def test_half_precision_is_refused_before_anything_is_done(tmp_path):
    model = file_of_a_network()
    weight = numpy_helper.to_array(model.graph.initializer[0]).astype(np.float16)
    model.graph.initializer[0].CopyFrom(numpy_helper.from_array(weight, "w"))
    for value in (*model.graph.input, *model.graph.output):
        value.type.tensor_type.elem_type = TensorProto.FLOAT16
    with pytest.raises(OnnxError, match="is float16"):
        detent.quantize(model, images(), backend="onnxruntime", folder=tmp_path / "out")


def test_a_module_is_left_alone_unless_it_may_be_used_up(tmp_path):
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU()).eval()
    before = dict(net.named_modules())
    detent.quantize(net, images(), backend="onnxruntime", folder=tmp_path / "copy")
    assert dict(net.named_modules()) == before
    made = detent.quantize(net, images(), backend="onnxruntime", folder=tmp_path / "own", inplace=True)
    assert made.prepared.get_submodule("0") is net[0]


def test_no_data_is_an_error(tmp_path):
    with pytest.raises(RangeError, match="the batches are empty"):
        detent.quantize(file_of_a_network(), [], backend="onnxruntime", folder=tmp_path / "out")


@pytest.mark.parametrize(
    ("folder", "backend", "words"),
    [("file/out", "onnxruntime", "cannot be written there"), ("out", "openvino", "openvino is not installed")],
)
def test_what_could_not_be_written_is_refused_before_the_data_are_read(folder, backend, words, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "openvino", None)
    (tmp_path / "file").write_text("a file")

    def batches():
        pytest.fail("read data")

    with pytest.raises(DetentError, match=words):
        detent.quantize(nn.Linear(3, 2), batches, backend=backend, folder=tmp_path / folder)


def test_a_second_run_into_a_folder_is_told_who_is_there(tmp_path):
    """Before it reads any data, and the first one ends as if alone."""

    def first():
        program = f"import detent\ndetent.quantize(None, None, backend='native', folder={str(tmp_path / 'out')!r})"
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=300)
        assert f"out is in use by process {os.getpid()} since 2" in done.stderr
        yield from images()

    artifact = detent.quantize(file_of_a_network(), first, backend="onnxruntime", folder=tmp_path / "out")
    assert artifact.verify(images(1), latency=False).holds
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_an_unknown_backend_is_an_error_and_nothing_is_written(tmp_path):
    with pytest.raises(UnknownNameError, match="onnxruntim"):
        detent.quantize(file_of_a_network(), images(), backend="onnxruntim", folder=tmp_path / "out")
    assert list(tmp_path.iterdir()) == []

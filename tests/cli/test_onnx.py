"""`detent plan` and `detent quantize` on an ONNX file, as a user calls them."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper

import detent
from detent.cli import main


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """With `net.onnx`, and calibration data for it in `calib`."""
    dice = np.random.default_rng(0)
    nodes = [
        helper.make_node("Conv", ["image", "w"], ["c"], name="/stem/Conv"),
        helper.make_node("Add", ["c", "other"], ["a"], name="/join/Add"),
        helper.make_node("Relu", ["a"], ["y"], name="/join/Relu"),
    ]
    graph = helper.make_graph(
        nodes,
        "net",
        [
            helper.make_tensor_value_info("image", TensorProto.FLOAT, ["n", 3, 6, 6]),
            helper.make_tensor_value_info("other", TensorProto.FLOAT, ["n", 4, 4, 4]),
        ],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 4, 4, 4])],
        [numpy_helper.from_array(dice.standard_normal((4, 3, 3, 3)).astype(np.float32), "w")],
    )
    onnx.save(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), tmp_path / "net.onnx"
    )
    (tmp_path / "calib").mkdir()
    for index in range(3):
        arrays = {"image": dice.standard_normal((2, 3, 6, 6)), "other": dice.standard_normal((2, 4, 4, 4))}
        np.savez(tmp_path / "calib" / f"{index}.npz", **arrays)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(monkeypatch: pytest.MonkeyPatch, *words: str) -> int:
    monkeypatch.setattr(sys, "argv", ["detent", *words])
    with pytest.raises(SystemExit) as end:
        main()
    return int(end.value.code or 0)


@pytest.mark.usefixtures("folder")
def test_the_plan_says_how_each_operation_runs(monkeypatch, capsys):
    assert run(monkeypatch, "plan", "net.onnx", "--backend", "tensorrt", "--exclude", "/join/*") == 0
    lines = capsys.readouterr().out.splitlines()
    table = {words[0]: words[2] for line in lines if (words := line.split()) and words[0].startswith("/")}
    assert table == {"/stem/Conv": "quantized", "/join/Add": "float", "/join/Relu": "float"}
    assert lines[-1] == "operations: 1 quantized, 2 float"


@pytest.mark.parametrize("exclude", ["Add", "add", "/join/Add"], ids=["type", "kind", "name"])
@pytest.mark.usefixtures("folder")
def test_overrides_by_type_kind_or_name(exclude, monkeypatch, capsys):
    assert run(monkeypatch, "plan", "net.onnx", "--backend", "tensorrt", "--exclude", exclude, "--json") == 0
    found = {op["op"]: op["runs"] for op in json.loads(capsys.readouterr().out)["operations"]}
    assert (found["/stem/Conv"], found["/join/Add"]) == ("quantized", "float")


@pytest.mark.usefixtures("folder")
def test_quantize_does_it_all(monkeypatch, capsys):
    words = ("quantize", "net.onnx", "--backend", "onnxruntime", "--data", "calib", "-o", "out")
    assert run(monkeypatch, *words) == 0
    said = capsys.readouterr()
    assert "out: model.onnx; 5 tensors quantized" in said.out
    assert said.err == ""  # no bar where there is no terminal
    assert run(monkeypatch, "verify", "out", "--data", "calib", "--no-latency") == 0
    names = [node.name for node in onnx.load("out/model.onnx").graph.node]
    assert [name for name in names if "Linear" not in name] == ["/stem/Conv", "/join/Add", "/join/Relu"]


@pytest.mark.usefixtures("folder")
def test_quantize_for_speed(monkeypatch, capsys):
    monkeypatch.setattr("detent.precision.faster_in_float", lambda _: {"/stem/Conv": (2.0, 1.0)})
    monkeypatch.setattr("detent.precision.time_artifacts", lambda *_: [2.0, 1.0])
    words = ("quantize", "net.onnx", "--backend", "onnxruntime", "--data", "calib", "-o", "out", "--prefer", "speed")
    assert run(monkeypatch, *words) == 0
    note = "float for speed, each timed alone: /stem/Conv (1.00 ms for 2.00). The network takes 1.00 ms in place of"
    assert note in " ".join(capsys.readouterr().out.split())
    assert run(monkeypatch, *words[:-1], "size") == 2
    assert "'accuracy', 'speed'" in capsys.readouterr().err


def test_quantize_writes_the_report_too(folder, monkeypatch, capsys):
    words = ("quantize", "net.onnx", "--backend", "onnxruntime", "--data", "calib", "-o", "out", "--report")
    assert run(monkeypatch, *words) == 0
    page, following = capsys.readouterr().out.splitlines()[-2:]
    assert (page, following) == (str(Path("out/report.html")), "next: detent verify out --data calib")
    assert "computes what was predicted" in (folder / "out" / "report.html").read_text()


def test_the_next_command_may_be_copied_to_the_shell(folder, monkeypatch, capsys):
    (folder / "calib").rename(folder / "my calib")
    words = ("quantize", "net.onnx", "--backend", "onnxruntime", "--data", "my calib", "-o", "späte Netze/eins")
    assert run(monkeypatch, *words) == 0
    told = capsys.readouterr().out.splitlines()[-1]
    assert told == "next: detent verify 'späte Netze/eins' --data 'my calib'"
    assert run(monkeypatch, *shlex.split(told)[2:], "--no-latency") == 0


def test_quantize_takes_batches_from_a_function(folder, monkeypatch, capsys):
    (folder / "mine.py").write_text(
        "import numpy as np\n"
        "def batches():\n"
        "    for seed in range(2):\n"
        "        dice = np.random.default_rng(seed)\n"
        "        other = dice.random((2, 4, 4, 4), np.float32)\n"
        "        yield {'other': other, 'image': dice.random((2, 3, 6, 6), np.float32)}\n"
    )
    words = ("quantize", "net.onnx", "--backend", "onnxruntime", "--data", "mine.py:batches", "-o", "out")
    assert run(monkeypatch, *words) == 0
    assert "5 tensors quantized" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"--data": "nowhere"}, "no such file or folder"),
        ({"--backend": "onnxruntim"}, "did you mean 'onnxruntime'"),
        ({"--steps": "513"}, "less than or equal to 512"),
        ({"--crop": "0"}, "greater than or equal to 1"),
        ({"--exclude": "/haed/*"}, "matches nothing"),
        ({"--recipe": "absent"}, "not one of"),
        ({"--data": "mine.py:batches"}, "mine.py: no such file"),
        ({"--backend": "executorch_xnnpack"}, "executorch is not installed; pip install 'detent[executorch]'"),
        ({"-o": "net.onnx/out"}, "it cannot be written there"),
        ({"--mean": "0.5,0.5,0.5"}, "--mean without --crop"),
        ({"--crop": "6"}, "--crop is for images, and calib holds arrays"),
        ({"--data": "given.py:batches", "--batch-size": "4"}, "--batch-size is for files"),
        ({"--data": "given.py:batches", "--crop": "4"}, "--crop is for files"),
        ({"--data": "given.py:batches"}, "RuntimeError: out of pictures (line 2 of"),
        ({"--data": "given.py:nothing"}, "a batch that is None: it contains no numbers"),
    ],
    ids=[
        "data",
        "backend",
        "steps",
        "crop",
        "exclude",
        "recipe",
        "function",
        "package",
        "place",
        "no-crop",
        "crop-of-arrays",
        "batch-size-of-a-function",
        "crop-of-a-function",
        "function-that-fails",
        "function-of-nothing",
    ],
)
def test_a_mistake_is_said_and_nothing_is_written(changes, words, folder, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "executorch", None)
    (folder / "given.py").write_text(
        "def batches():\n    raise RuntimeError('out of pictures')\n    yield\n\ndef nothing():\n    yield None\n"
    )
    options = {"--backend": "onnxruntime", "--data": "calib", "-o": "out", **changes}
    assert run(monkeypatch, "quantize", "net.onnx", *(word for pair in options.items() for word in pair)) == 2
    said = capsys.readouterr()
    assert words in " ".join(said.err.split())
    assert "Traceback" not in said.err
    assert not (folder / "out").exists()


def test_retarget_takes_a_folder_to_another_target(folder, monkeypatch, capsys):
    assert run(monkeypatch, "quantize", "net.onnx", "--backend", "onnxruntime", "--data", "calib", "-o", "out") == 0
    assert run(monkeypatch, "retarget", "out", "--backend", "qnn") == 0
    said = capsys.readouterr().out
    assert f"{folder / 'out-qnn'}: float.onnx, model.onnx, " in said
    assert said.splitlines()[-1] == f"next: detent verify {folder / 'out-qnn'} --data DATA"
    assert run(monkeypatch, "retarget", "out", "--backend", "qnn", "-o", "there", "--json") == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["folder"], told["backend"]) == ("there", "qnn")
    assert run(monkeypatch, "verify", "there", "--data", "calib", "--no-latency") == 0


def test_retarget_refuses_what_the_other_target_cannot_hold(folder, monkeypatch, capsys):
    assert run(monkeypatch, "quantize", "net.onnx", "--backend", "onnxruntime", "--data", "calib", "-o", "out") == 0
    capsys.readouterr()
    assert run(monkeypatch, "retarget", "out", "--backend", "tensorrt") == 2
    assert "keep the scale of 'image' for tensorrt" in capsys.readouterr().err
    assert not (folder / "out-tensorrt").exists()


def test_a_batch_size_that_the_network_does_not_take_is_refused(folder, monkeypatch, capsys):
    model = onnx.load(folder / "net.onnx")
    for value in model.graph.input:
        value.type.tensor_type.shape.dim[0].dim_value = 2
    onnx.save(model, folder / "net.onnx")
    words = ("quantize", "net.onnx", "--backend", "onnxruntime", "--data", "calib", "-o", "out", "--batch-size")
    assert run(monkeypatch, *words, "4") == 2
    assert "--batch-size 4, and the network takes 2 at a time" in " ".join(capsys.readouterr().err.split())
    assert run(monkeypatch, *words, "2") == 0


def test_a_file_that_detent_wrote_is_the_network_it_is_in_python(tmp_path, monkeypatch, capsys):
    """Deploying for ONNX Runtime writes a transposed convolution as a convolution: loading puts it back."""
    torch.manual_seed(0)
    x = torch.randn(2, 4, 5, 5)
    prepared = detent.prepare(torch.nn.ConvTranspose2d(4, 4, 2, stride=2), (x,), backend="onnxruntime")
    detent.calibrate(prepared, [x])
    artifact = detent.deploy(prepared, tmp_path / "first")
    assert "ConvTranspose" not in [node.op_type for node in artifact.model.graph.node]
    file = str(artifact.path("model.onnx"))
    assert run(monkeypatch, "plan", file, "--backend", "openvino", "--json") == 0
    planned = json.loads(capsys.readouterr().out)["operations"]
    np.save(tmp_path / "calib.npy", x.numpy())
    data, out = str(tmp_path / "calib.npy"), str(tmp_path / "second")
    assert run(monkeypatch, "quantize", file, "--backend", "openvino", "--data", data, "-o", out) == 0
    quantized = detent.Artifact.load(out).manifest["plan"]["operations"]
    in_python = detent.prepare(detent.load(file), (x,), backend="openvino")
    assert planned == quantized == in_python.plan.to_dict()["operations"]
    assert [op["kind"] for op in planned] == ["ConvTranspose"]


@pytest.mark.usefixtures("folder")
def test_quantize_says_how_far_it_is_from_float(monkeypatch, capsys):
    words = ("quantize", "net.onnx", "--backend", "onnxruntime", "--data", "calib", "-o", "out")
    assert run(monkeypatch, *words) == 0
    said = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("SQNR"))
    assert float(said.split()[-2]) > 25
    assert run(monkeypatch, "verify", "out", "--data", "calib", "--no-latency") == 0
    assert said in capsys.readouterr().out.splitlines()
    assert run(monkeypatch, *words, "--json") == 0
    assert json.loads(capsys.readouterr().out)["sqnr"]["y"] > 25


def test_calibrating_on_zeros_is_noted(folder, monkeypatch, capsys):
    np.savez(folder / "zeros.npz", image=np.zeros((2, 3, 6, 6)), other=np.ones((2, 4, 4, 4)))
    words = ("quantize", "net.onnx", "--backend", "onnxruntime", "--data", "zeros.npz", "-o", "out")
    assert run(monkeypatch, *words) == 0
    assert "note: the calibration data of input 0 is 0 everywhere" in capsys.readouterr().out


def _save(path, nodes, shape, **held):
    arrays = {name: np.asarray(value, np.float32) for name, value in held.items()}
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)]
    if any("sr" in node.input for node in nodes):
        inputs.append(helper.make_tensor_value_info("sr", TensorProto.FLOAT, []))
    graph = helper.make_graph(
        nodes,
        "net",
        inputs,
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(array, name) for name, array in arrays.items()],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)


def test_sizes_and_inputs_are_fixed(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    nodes = [helper.make_node("Conv", ["x", "w"], ["c"], name="conv"), helper.make_node("Mul", ["c", "sr"], ["y"])]
    _save("net.onnx", nodes, [-1, 3, "h", "w"], w=np.random.default_rng(0).standard_normal((4, 3, 5, 5)))
    assert run(monkeypatch, "plan", "net.onnx", "--backend", "onnxruntime") == 2
    assert "--size h=64 --size w=64" in capsys.readouterr().err
    for sizes in (("--size", "8"), ("--size", "h=8", "--size", "w=9")):
        assert run(monkeypatch, "plan", "net.onnx", "--backend", "onnxruntime", *sizes) == 0
    np.save("x.npy", np.random.default_rng(1).standard_normal((4, 3, 8, 8)).astype(np.float32))
    capsys.readouterr()
    words = ("quantize", "net.onnx", "--backend", "onnxruntime", "--data", "x.npy", "-o", "out", "--set", "sr=2")
    assert run(monkeypatch, *words, "--size", "h=8", "--batch-size", "2") == 0
    (port,) = onnx.load("out/model.onnx").graph.input
    sizes = [dim.dim_value or dim.dim_param for dim in port.type.tensor_type.shape.dim]
    assert sizes[1:] == [3, 8, "w"]
    assert run(monkeypatch, "verify", "out", "--data", "x.npy", "--no-latency") == 0


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--size", "h=x"), "a size is a whole number"),
        (("--size", "width=3"), "the model has no such size"),
        (("--set", "image"), "give a name and a number"),
        (("--set", "image=a"), "give numbers"),
        (("--layout", "nhwc"), "--layout without --crop"),
        (("--layout", "chw", "--crop", "6"), "use nchw or nhwc"),
    ],
)
@pytest.mark.usefixtures("folder")
def test_what_cannot_be_fixed_is_one_line(words, said, monkeypatch, capsys):
    words = ("quantize", "net.onnx", "--backend", "onnxruntime", "--data", "calib", "-o", "out", *words)
    assert run(monkeypatch, *words) == 2
    assert said in " ".join(capsys.readouterr().err.replace("│", " ").split())


@pytest.mark.parametrize("layout", [(), ("--layout", "nhwc")])
def test_images_for_a_network_with_channels_last(layout, tmp_path, monkeypatch):
    image = pytest.importorskip("PIL.Image")
    monkeypatch.chdir(tmp_path)
    nodes = [
        helper.make_node("Transpose", ["x"], ["t"], perm=[0, 3, 1, 2]),
        helper.make_node("Conv", ["t", "w"], ["y"], name="conv"),
    ]
    _save("net.onnx", nodes, ["n", 8, 8, 3], w=np.random.default_rng(0).standard_normal((4, 3, 3, 3)))
    (tmp_path / "photos").mkdir()
    for index in range(2):
        pixels = np.random.default_rng(index).integers(0, 255, (9, 9, 3), np.uint8)
        image.fromarray(pixels).save(tmp_path / "photos" / f"{index}.png")
    words = ("--data", "photos", "--crop", "8", *layout)
    assert run(monkeypatch, "quantize", "net.onnx", "--backend", "onnxruntime", "-o", "out", *words) == 0
    assert run(monkeypatch, "verify", "out", "--no-latency", *words) == 0

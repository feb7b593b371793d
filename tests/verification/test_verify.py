"""Verifying: what holds is said to hold, and what was tampered with is caught and located."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from onnx import numpy_helper
from torch import nn

import detent
from detent.artifact import Artifact
from detent.errors import EngineError, RangeError, TensorError, UnknownNameError, install_hint
from detent.ir.package import MANIFEST, digest
from detent.recipes import Recipe
from detent.targets.arithmetics import ARITHMETICS
from detent.targets.engines import ENGINES
from detent.targets.onnxruntime.arithmetic.onnxruntime import OnnxRuntime
from detent.verification.verdict import Speed
from tests.models import MODELS


def deployed(folder: Path, model: str = "residual_cnn", backend: str = "onnxruntime") -> tuple[Artifact, torch.Tensor]:
    torch.manual_seed(0)
    entry = MODELS[model]
    net, inputs = entry.build().eval(), entry.inputs()
    prepared = detent.prepare(net, inputs, backend=backend, recipe=recipe_for(backend))
    detent.calibrate(prepared, [inputs])
    return detent.deploy(prepared, folder), inputs[0]


def recipe_for(backend: str) -> Recipe:
    """Of weights that give the same numbers on every CPU."""
    x86 = backend in ("onnxruntime", "openvino", "torch_x86")
    return Recipe(name="portable", weight={"bits": 7} if x86 else {})


def rewritten(artifact: Artifact, change) -> Artifact:
    """The artifact with another model.onnx, hashed as if deploy had written it."""
    model = onnx.load_model(str(artifact.folder / "model.onnx"))
    change(model)
    content = model.SerializeToString()
    (artifact.folder / "model.onnx").write_bytes(content)
    manifest = json.loads((artifact.folder / MANIFEST).read_text())
    manifest["files"]["model.onnx"] = digest(content)
    (artifact.folder / MANIFEST).write_text(json.dumps(manifest))
    loaded = Artifact.load(artifact.folder)
    return Artifact(loaded.folder, loaded.manifest, artifact.prepared)


def initializer(model: onnx.ModelProto, name: str) -> onnx.TensorProto:
    return next(one for one in model.graph.initializer if one.name == name)


def test_a_deployed_network_computes_what_the_twin_says(tmp_path):
    artifact, x = deployed(tmp_path / "out")
    verdict = artifact.verify([x], latency=False)
    assert verdict.holds
    assert verdict.line.startswith("PASS: onnxruntime")
    assert "equal" in verdict.line
    ends = {difference.what: difference for difference in verdict.outputs}
    assert ends["twin vs engine"].differing == 0
    assert ends["twin vs engine"].elements == 10  # 2 samples, 5 classes
    assert len(verdict.tensors) > 20
    assert verdict.in_float == ()


@pytest.mark.parametrize("backend", ["onnxruntime", "openvino", "litert", "ncnn", "torch_x86"])
def test_a_linear_layer_behind_a_flattened_image(backend, tmp_path):
    """Files with channels last hold what is flattened in another order than the network has it."""
    torch.manual_seed(0)
    pool = nn.MaxPool2d(2, 2, padding=1, ceil_mode=True)  # its last window would begin outside
    net = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), pool, nn.Flatten(), nn.Linear(128, 5)).eval()
    x = torch.randn(4, 3, 7, 7)
    prepared = detent.prepare(net, (x,), backend=backend, recipe=recipe_for(backend))
    detent.calibrate(prepared, [x])
    engine = ENGINES[detent.targets.BACKENDS[backend].engine]
    if engine.version() is None:
        pytest.skip(f"pip install 'detent[{engine.extra}]'")
    verdict = detent.deploy(prepared, tmp_path / "out").verify([x], latency=False)
    assert verdict.holds, verdict.problems


def test_without_the_model_the_file_itself_is_simulated(tmp_path):
    artifact, x = deployed(tmp_path / "out")
    verdict = Artifact.load(artifact.folder).verify([x], latency=False)
    assert verdict.holds
    assert {d.what for d in verdict.outputs} == {"file vs twin", "twin vs engine", "file vs engine"}
    assert not verdict.simulated
    assert "file: model.onnx computed in float" in str(verdict)


def test_a_corrupted_scale_is_caught_and_located(tmp_path):
    artifact, x = deployed(tmp_path / "out")
    name = next(t["tensor"] for t in artifact.manifest["tensors"] if t["role"] == "activation" and t["op"])

    def corrupt(model):
        scale = initializer(model, f"{name}_scale")
        scale.CopyFrom(numpy_helper.from_array(np.float32(numpy_helper.to_array(scale) * 1.25), scale.name))

    verdict = rewritten(artifact, corrupt).verify([x], latency=False)
    assert not verdict.holds
    assert verdict.problems[0].startswith(f"{name}: model.onnx has ")
    # The simulation says it too, without the manifest: this tensor differs from what the model computes.
    assert any(problem.startswith(f"{name}: simulation vs file") for problem in verdict.problems)


def test_a_swapped_axis_is_caught_and_located(tmp_path):
    class Square(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = nn.Conv2d(8, 8, 3)

        def forward(self, x):
            return torch.relu(self.conv(x))

    torch.manual_seed(0)
    x = torch.randn(2, 8, 8, 8)
    prepared = detent.prepare(Square().eval(), (x,), backend="onnxruntime")
    detent.calibrate(prepared, [x])
    artifact = detent.deploy(prepared, tmp_path / "out")

    def swap(model):
        node = next(n for n in model.graph.node if n.output[0] == "conv.weight")
        next(a for a in node.attribute if a.name == "axis").i = 1

    verdict = rewritten(artifact, swap).verify([x], latency=False)
    assert not verdict.holds
    assert "conv.weight" in verdict.problems[0]
    assert "axis 1" in verdict.problems[0]


def more_bias(model):
    bias = initializer(model, "conv1.bias_quantized")
    bias.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(bias) + 50, bias.name))


def swapped_weights(model):
    one, other = (initializer(model, f"{name}.weight_quantized") for name in ("conv1", "conv2"))
    one.raw_data = numpy_helper.to_array(one)[::-1].tobytes()
    other.raw_data = numpy_helper.to_array(other)[::-1].tobytes()


def another_padding(model):
    node = next(node for node in model.graph.node if node.name == "conv1")
    pads = next(attribute for attribute in node.attribute if attribute.name == "pads")
    pads.ints[:] = [2, 1, 0, 1]


@pytest.mark.parametrize(
    ("change", "parameters", "tensors"),
    [
        (more_bias, ["conv1.bias"], ["conv1"]),
        (swapped_weights, ["conv1.weight", "conv2.weight"], ["conv1", "conv2"]),
        (another_padding, [], ["conv1"]),
    ],
    ids=["bias", "weights", "padding"],
)
def test_what_only_the_model_knows_is_caught_and_located(change, parameters, tensors, tmp_path):
    """Scales and zero points are the manifest's, and the ReLU behind each layer hides it from the grid: the numbers of
    the parameter say it, and the real numbers of the layer itself."""
    artifact, x = deployed(tmp_path / "out")
    verdict = rewritten(artifact, change).verify([x], latency=False)
    assert not verdict.holds
    assert [problem.split(":")[0] for problem in verdict.problems] == parameters + tensors
    assert all("model.onnx has" in problem for problem in verdict.problems[: len(parameters)])
    assert all("simulation vs file" in problem for problem in verdict.problems[len(parameters) :])


def test_a_wrong_rounding_is_caught_and_located(tmp_path, monkeypatch):
    class Floors(OnnxRuntime):
        def quantize(self, values, encoding):
            scale, zero_point = float(encoding.scale), float(encoding.zero_point)
            return torch.clamp(torch.floor(values / scale) + zero_point, encoding.qmin, encoding.qmax)

    artifact, x = deployed(tmp_path / "out")
    monkeypatch.setitem(ARITHMETICS._table, "onnxruntime", Floors)
    verdict = artifact.verify([x], latency=False)
    assert not verdict.holds
    first = verdict.problems[0]
    assert first.startswith("x: twin vs engine"), first


def test_accuracy_is_that_of_each_computation(tmp_path):
    artifact, x = deployed(tmp_path / "out")
    labels = artifact.prepared.eval()(x).argmax(1)
    verdict = artifact.verify([(x, labels)], latency=False, tensors=False)
    assert verdict.accuracy is not None
    assert (verdict.accuracy.samples, verdict.accuracy.simulation) == (2, 100.0)
    assert verdict.accuracy.twin == verdict.accuracy.engine
    assert verdict.tensors == ()


def test_another_arithmetic_than_the_engines_is_caught(tmp_path):
    """OpenVINO's claim allows 1 LSB now and then; as ONNX Runtime's it is off in a fifth of an addition."""
    artifact, x = deployed(tmp_path / "out")
    verdict = artifact.verify([x], latency=False, arithmetic="openvino")
    assert not verdict.holds
    assert verdict.problems[0].startswith("relu3: twin vs engine: ")


@pytest.mark.parametrize(("steps", "holds"), [(0, True), (1, False)])
def test_an_output_that_is_off_is_caught_where_nothing_inside_is_compared(tmp_path, monkeypatch, steps, holds):
    """Where equality is not claimed, codes may flip and spread to an output, but only where float32 arithmetic can
    reach the edge of a code."""
    artifact, x = deployed(tmp_path / "out", "conv_transpose_bn")
    engine = ENGINES["onnxruntime"]
    step = steps * float(artifact.graph.outputs[0].read.encoding.scale)
    run = engine.run
    monkeypatch.setattr(
        engine, "run", lambda self, inputs: {k: v - np.sign(v) * step for k, v in run(self, inputs).items()}
    )
    verdict = artifact.verify([x], latency=False, tensors=False, arithmetic="openvino")
    assert verdict.holds == holds, verdict


def test_the_table(tmp_path):
    artifact, x = deployed(tmp_path / "out")
    shown = str(artifact.verify([x], latency=False)).splitlines()
    assert shown[0] == "PASS: onnxruntime 1.31.1 computes what was predicted: all 10 outputs of 2 samples are equal"
    assert [row.split() for row in shown[2:6]] == [
        ["compared", "tensor", "differing", "of", "rate", "largest", "difference"],
        ["simulation", "vs", "twin", "output", "0", "10"],
        ["twin", "vs", "engine", "output", "0", "10"],
        ["simulation", "vs", "engine", "output", "0", "10"],
    ]
    assert "operations that ran on integers: 12; in float: none" in shown


@pytest.mark.parametrize(("float_ms", "said"), [(4.0, "ratio 0.50"), (1.0, "ratio 2.00: integers do not pay")])
def test_a_network_that_is_slower_says_what_to_do(tmp_path, float_ms, said):
    artifact, x = deployed(tmp_path / "out")
    verdict = replace(artifact.verify([x], latency=False), speed=Speed(2.0, float_ms, 2.0, float_ms))
    (line,) = [line for line in str(verdict).splitlines() if line.startswith("latency")]
    assert line.startswith(f"latency, one thread: 2.00 ms quantized, {float_ms:.2f} ms float, {said}")
    assert ("--prefer speed" in line) == (float_ms < 2)


def test_the_verdict_is_json(tmp_path):
    artifact, x = deployed(tmp_path / "out")
    verdict = artifact.verify([x])
    told = json.loads(json.dumps(verdict.to_dict()))
    assert told["holds"] is True
    assert told["verdict"] == verdict.line
    assert told["speed"]["int8_ms"] > 0
    assert {each["what"] for each in told["tensors"]} == {"simulation vs file", "simulation vs twin", "twin vs engine"}
    assert told["tensors"][0] == {
        "tensor": "x",
        "what": "simulation vs file",
        "elements": 1536,
        "differing": 0,
        "most": 0.0,
        "unit": "LSB",
        "impossible": 0,
        "must_equal": False,
    }
    assert verdict.line in str(verdict)


def test_a_backend_without_an_engine_is_compared_with_the_twin(tmp_path):
    artifact, x = deployed(tmp_path / "out", backend="tensorrt")
    verdict = artifact.verify([x])
    assert verdict.engine is None
    assert verdict.holds
    assert "no engine ran" in verdict.line


def test_grids_that_onnx_cannot_say_are_said_to_be_missing_in_the_file(tmp_path):
    artifact, x = deployed(tmp_path / "out", "linear_bn", "nnie")
    verdict = artifact.verify([x])
    assert verdict.unsaid == ("x", "fc1.weight", "relu", "fc2.weight")
    assert verdict.line.startswith(
        "PASS without an engine: model.onnx is not what was simulated: ONNX cannot express the grids of 4 tensors"
    )
    assert "single roundings" not in str(verdict)


def logarithmic(folder: Path, model: str) -> tuple[Artifact, tuple]:
    torch.manual_seed(0)
    entry = MODELS[model]
    net, inputs = entry.build().eval(), entry.inputs()
    prepared = detent.prepare(net, inputs, backend="nnie")
    detent.calibrate(prepared, [inputs])
    return detent.deploy(prepared, folder), inputs


@pytest.mark.parametrize("model", ["dict_io", "unet"])
def test_what_some_read_on_a_grid_that_onnx_cannot_say_and_others_as_it_is_holds(model, tmp_path):
    """A sum that is an output, and that a layer reads; maps that a pooling reads, and a concatenation."""
    artifact, inputs = logarithmic(tmp_path / "out", model)
    verdict = artifact.verify([inputs], latency=False)
    assert verdict.holds, verdict.problems


def test_an_operation_that_reads_on_a_grid_that_onnx_cannot_say_is_still_located(tmp_path):
    def change(model: onnx.ModelProto) -> None:
        layer = next(node for node in model.graph.node if node.output[0] == "fc")
        layer.attribute.append(onnx.helper.make_attribute("alpha", 1.001))

    artifact, inputs = logarithmic(tmp_path / "out", "dict_io")
    verdict = rewritten(artifact, change).verify([inputs], latency=False)
    assert [problem.partition(":")[0] for problem in verdict.problems] == ["fc"]


def test_biases_of_next_to_nothing_are_nothing(tmp_path):
    """OpenVINO's file has some of k * 2**-100 where a layer has none. One whose inputs are all zero gives only them."""
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Linear(32, 1, bias=False), nn.ReLU(), nn.Linear(1, 16, bias=False), nn.ReLU(), nn.Linear(16, 4)
    )
    batches = [(torch.randn(4, 32),) for _ in range(4)]
    prepared = detent.prepare(net.eval(), batches[0], backend="openvino", recipe=recipe_for("openvino"))
    detent.calibrate(prepared, batches)
    verdict = detent.deploy(prepared, tmp_path / "out").verify(batches, latency=False)
    assert verdict.holds, verdict.problems


def test_no_data_is_an_error(tmp_path):
    artifact, _ = deployed(tmp_path / "out")
    with pytest.raises(RangeError, match="the batches are empty"):
        artifact.verify([])


@pytest.mark.parametrize("shape", [(2, 5, 16, 16), (3, 16, 16), (2, 3, 16, 9)], ids=["channels", "rank", "width"])
def test_inputs_of_another_shape_are_an_error(shape, tmp_path):
    artifact, _ = deployed(tmp_path / "out")
    for one in (artifact, Artifact.load(artifact.folder)):  # with the torch model, and without
        with pytest.raises(TensorError, match=r"the network takes \('batch', 3, 16, 16\)"):
            one.verify([torch.randn(shape)], latency=False)


@pytest.mark.parametrize(
    ("batches", "error", "said"),
    [
        (lambda x: [x[:0]], TensorError, r"of shape \(0, 3, 16, 16\)\nfound: it holds nothing"),
        (lambda x: [x, x[:0]], TensorError, "it holds nothing"),
        (lambda x: [x.int()], TensorError, "'x' of dtype int32\nfound: the network takes float32"),
        (lambda x: [x.index_fill(3, torch.tensor(5), torch.nan)], RangeError, r"'x' that is NaN at \[0, 0, 0, 5\]"),
        (lambda _: None, TensorError, "verify on a NoneType"),
        (lambda _: 3, TensorError, "verify on a int"),
    ],
    ids=["empty", "empty-in-between", "integers", "not-a-number", "none", "a-number"],
)
def test_data_that_cannot_be_compared_is_an_error(batches, error, said, tmp_path):
    artifact, x = deployed(tmp_path / "out")
    for one in (artifact, Artifact.load(artifact.folder)):  # with the torch model, and without
        with pytest.raises(error, match=said):
            one.verify(batches(x), latency=False)


@pytest.mark.parametrize(
    "change", [torch.Tensor.double, lambda x: x.numpy().astype(np.float64), lambda x: x * torch.inf]
)
def test_data_of_double_precision_and_infinities_are_compared(change, tmp_path):
    artifact, x = deployed(tmp_path / "out")
    verdict = artifact.verify([change(x)], latency=False)
    assert verdict.holds, verdict


@pytest.mark.parametrize("label", [5, -1, 2.5])
def test_a_label_of_no_class_is_an_error(label, tmp_path):
    artifact, x = deployed(tmp_path / "out")
    with pytest.raises(RangeError, match=f"(?s)the label {label} .* has 5 numbers for each sample, classes 0 to 4"):
        artifact.verify([(x, torch.tensor([3, label]))], latency=False, tensors=False)


def test_labels_that_are_none_are_an_error(tmp_path):
    artifact, x = deployed(tmp_path / "out")
    with pytest.raises(TensorError, match=r"labels of shape \(2, 3, 16, 16\) for 2 samples"):
        artifact.verify([(x, x)], latency=False)


def test_data_that_is_not_the_networks_is_an_error(tmp_path):
    artifact, x = deployed(tmp_path / "out")
    with pytest.raises(TensorError, match="the network takes"):
        artifact.verify([{"somewhere": x}])


# ---- files of other engines ----


def with_file(artifact: Artifact, suffix: str, change) -> Artifact:
    """The artifact with another vendor file, hashed as if deploy had written it."""
    path = artifact.path(suffix)
    content = change(path.read_bytes())
    path.write_bytes(content)
    manifest = json.loads((artifact.folder / MANIFEST).read_text())
    manifest["files"][path.name] = digest(content)
    (artifact.folder / MANIFEST).write_text(json.dumps(manifest))
    loaded = Artifact.load(artifact.folder)
    return Artifact(loaded.folder, loaded.manifest, artifact.prepared)


def inner(artifact: Artifact) -> tuple[str, np.float32]:
    """An activation inside of the network that one scale belongs to, and that scale."""
    tensors = [t for t in artifact.manifest["tensors"] if t["role"] == "activation" and t["op"]]
    scales = [t["scale"] for t in artifact.manifest["tensors"] if t["role"] == "activation"]
    found = next(t for t in tensors if scales.count(t["scale"]) == 1)
    return found["tensor"], np.float32(found["scale"])


def test_a_corrupted_scale_of_a_tflite_file_is_caught_and_located(tmp_path):
    pytest.importorskip("ai_edge_litert", reason="LiteRT runs the file")
    artifact, x = deployed(tmp_path / "out", backend="litert")
    assert artifact.verify([x], latency=False).holds
    name, scale = inner(artifact)
    was, now = scale.tobytes(), np.float32(scale * np.float32(1.25)).tobytes()

    def corrupt(content: bytes) -> bytes:
        assert was in content
        return content.replace(was, now)

    verdict = with_file(artifact, ".tflite", corrupt).verify([x], latency=False)
    assert not verdict.holds
    assert any(problem.startswith(f"{name}: twin vs engine") for problem in verdict.problems), verdict.problems


def test_a_corrupted_scale_of_an_ncnn_file_is_caught(tmp_path):
    pytest.importorskip("ncnn", reason="ncnn runs the file")
    artifact, x = deployed(tmp_path / "out", backend="ncnn")
    assert artifact.verify([x], latency=False).holds
    weight = next(t for t in artifact.manifest["tensors"] if t["role"] == "weight")
    scale = np.atleast_1d(np.asarray(weight["scale"], np.float32))

    def corrupt(content: bytes) -> bytes:
        # ncnn stores reciprocals, one for each channel.
        was = next(b for b in ((np.float32(1) / scale).tobytes(), scale.tobytes()) if b in content)
        return content.replace(was, (np.frombuffer(was, np.float32) * np.float32(1.25)).tobytes())

    verdict = with_file(artifact, ".bin", corrupt).verify([x], latency=False)
    assert not verdict.holds
    assert "vs engine" in verdict.problems[0]


def test_operations_that_ran_in_float_are_named(tmp_path):
    """HardSigmoid has no integer kernel in ONNX Runtime: said, and no reason to doubt the rest."""
    artifact, x = deployed(tmp_path / "out", model="mobile_cnn")
    verdict = artifact.verify([x], latency=False)
    assert verdict.holds
    kinds = {placed["op"]: placed["kind"] for placed in verdict.placements}
    assert "HardSigmoid" in {kinds[op] for op in verdict.in_float}
    assert f"in float: {len(verdict.in_float)}\n" in str(verdict)
    assert "there is no integer kernel for HardSigmoid" in str(verdict)


def test_an_engine_that_is_not_installed_is_named_with_its_extra(tmp_path, monkeypatch):
    artifact, x = deployed(tmp_path / "out", backend="openvino")
    monkeypatch.setattr(ENGINES["openvino"], "version", classmethod(lambda _: None))
    verdict = artifact.verify([x], latency=False)
    assert verdict.engine is None
    assert f"openvino is not installed ({install_hint('openvino')}): it was not run" in verdict.notes
    with pytest.raises(EngineError, match=r"pip install 'detent\[openvino\]'"):
        artifact.verify([x], engine="openvino")


def test_an_unknown_engine_or_arithmetic_is_refused(tmp_path):
    artifact, x = deployed(tmp_path / "out")
    for options in ({"engine": "onnxruntim"}, {"arithmetic": "onnxruntim"}):
        with pytest.raises(UnknownNameError, match="onnxruntim"):
            artifact.verify([x], **options)


def test_a_network_of_structured_inputs_is_verified(tmp_path):
    torch.manual_seed(0)
    entry = MODELS["dict_io"]
    inputs = entry.inputs()
    prepared = detent.prepare(entry.build().eval(), inputs, backend="onnxruntime")
    detent.calibrate(prepared, [inputs])
    verdict = detent.deploy(prepared, tmp_path / "out").verify([inputs], latency=False)
    assert verdict.holds, verdict


def test_one_of_several_modes_is_verified(tmp_path):
    torch.manual_seed(0)
    entry = MODELS["several_modes"]
    inputs = entry.inputs()
    modes = {"tensor": {"mode": "tensor"}, "predict": {"mode": "predict"}}
    prepared = detent.prepare(
        entry.build().eval(), inputs, backend="openvino", modes=modes, recipe=recipe_for("openvino")
    )
    with detent.observing(prepared), torch.no_grad():
        for mode in modes:
            prepared(*inputs, mode=mode)
    verdict = detent.deploy(prepared.eval(), tmp_path / "out", mode="predict").verify([inputs], latency=False)
    assert verdict.holds, verdict


# ---- the command ----


def test_the_command_says_0_if_it_holds_1_if_not_and_2_for_a_mistake(command, tmp_path):
    artifact, x = deployed(tmp_path / "out")
    np.save(tmp_path / "data.npy", x.numpy())
    given = ("verify", str(artifact.folder), "--data", str(tmp_path / "data.npy"), "--json", "--no-latency")
    held = command(*given)
    assert held.returncode == 0, held.stderr
    assert json.loads(held.stdout)["holds"] is True

    name, _ = inner(artifact)

    def corrupt(model):
        scale = initializer(model, f"{name}_scale")
        scale.CopyFrom(numpy_helper.from_array(np.float32(numpy_helper.to_array(scale) * 1.25), scale.name))

    rewritten(artifact, corrupt)
    failed = command(*given)
    assert failed.returncode == 1, failed.stderr
    told = json.loads(failed.stdout)
    assert told["holds"] is False
    assert told["problems"][0].startswith(f"{name}: model.onnx has")

    (artifact.folder / "model.onnx").write_bytes(b"")
    mistaken = command(*given)
    assert mistaken.returncode == 2
    assert mistaken.stdout == ""
    assert mistaken.stderr.count("\n") == 1
    assert "model.onnx was changed after deploy" in mistaken.stderr


def test_a_folder_of_images(command, tmp_path):
    """`detent quantize` calibrates with such a folder, and ends with the command that verifies on it."""
    pil = pytest.importorskip("PIL.Image", reason="pip install 'detent[images]'")
    artifact, _ = deployed(tmp_path / "out")
    (tmp_path / "images").mkdir()
    for index in range(3):
        pixels = np.random.default_rng(index).integers(0, 256, (20, 24, 3), dtype=np.uint8)
        pil.fromarray(pixels).save(tmp_path / "images" / f"{index}.png")
    given = ("verify", str(artifact.folder), "--data", str(tmp_path / "images"), "--no-latency", "--no-tensors")
    refused = command(*given)
    assert refused.returncode == 2
    assert "--crop, --mean, --std" in refused.stderr
    held = command(*given, "--crop", "16", "--resize", "18", "--mean", "0.5,0.5,0.5", "--std", "0.5,0.5,0.5")
    assert held.returncode == 0, held.stderr
    assert "all 15 outputs of 3 samples are equal" in held.stdout


class InHalf(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Conv2d(3, 8, 3), nn.Linear(8, 5)

    def forward(self, x):
        return self.last(torch.relu(self.first(x)).mean((2, 3))).half()


@pytest.mark.parametrize("backend", ["onnxruntime", "openvino", "tensorrt", "torch_x86"])
def test_an_output_of_16_bits_is_rounded_by_every_side(backend, tmp_path):
    torch.manual_seed(0)
    x = torch.randn(4, 3, 8, 8)
    prepared = detent.prepare(InHalf().eval(), (x,), backend=backend, recipe=recipe_for(backend))
    detent.calibrate(prepared, [(x,)])
    verdict = detent.deploy(prepared, tmp_path / "out").verify([(x,)], latency=False)
    assert verdict.holds
    assert {each.differing for each in (*verdict.outputs, *verdict.tensors)} == {0}


class Routed(nn.Module):
    """As a layer of experts: numbers are chosen by what is greatest, and some of that is equal on its grid."""

    def __init__(self) -> None:
        super().__init__()
        self.router, self.head = nn.Linear(16, 16), nn.Linear(16, 8)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        weights, chosen = self.router(x).softmax(-1).topk(4, -1)
        values = torch.gather(x, -1, chosen)
        return self.head(torch.cat([weights, values, weights * values, weights], -1)), chosen


@pytest.mark.parametrize("backend", ["onnxruntime", "openvino"])
def test_what_is_chosen_among_equals_may_be_any_of_them(backend, tmp_path):
    pytest.importorskip(backend)
    torch.manual_seed(0)
    x = torch.randn(4, 6, 16)
    prepared = detent.prepare(Routed().eval(), (x,), backend=backend, recipe=recipe_for(backend))
    detent.calibrate(prepared, [x])
    verdict = detent.deploy(prepared, tmp_path / "out").verify([x], latency=False)
    assert verdict.holds, verdict

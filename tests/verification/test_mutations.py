"""Verifying what was changed a little: every change is caught, and the first problem says where it is.

Rates play no part: one code, or one number that float32 arithmetic cannot give, is enough.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from onnx import helper, numpy_helper

import detent
from detent.artifact import Artifact
from detent.ir.package import MANIFEST, digest
from detent.recipes import Recipe
from detent.targets.engines import ENGINES
from detent.targets.ncnn.file import NcnnModel
from tests.models import MODELS


@pytest.fixture(scope="module")
def deployed(tmp_path_factory):
    """Networks by name and backend, deployed once; a test gets a copy of the folder."""
    made: dict[tuple[str, str], tuple[Artifact, tuple]] = {}

    def artifact(model: str, backend: str, folder: Path) -> tuple[Artifact, tuple]:
        if (model, backend) not in made:
            torch.manual_seed(0)
            entry = MODELS[model]
            net, inputs = entry.build().eval(), entry.inputs()
            prepared = detent.prepare(net, inputs, backend=backend)
            detent.calibrate(prepared, [inputs])
            made[model, backend] = (detent.deploy(prepared, tmp_path_factory.mktemp("made") / "out"), inputs)
        found, inputs = made[model, backend]
        shutil.copytree(found.folder, folder)
        return Artifact(folder, found.manifest, found.prepared), inputs

    return artifact


def rewritten(artifact: Artifact, files: dict[str, bytes], change: Callable[[dict], None] | None = None) -> Artifact:
    """With other files and another manifest, hashed as if deploy had written them."""
    manifest = json.loads((artifact.folder / MANIFEST).read_text())
    for name, content in files.items():
        (artifact.folder / name).write_bytes(content)
        manifest["files"][name] = digest(content)
    if change is not None:
        change(manifest)
    (artifact.folder / MANIFEST).write_text(json.dumps(manifest))
    loaded = Artifact.load(artifact.folder)
    return Artifact(loaded.folder, loaded.manifest, artifact.prepared)


def changed(artifact: Artifact, change: Callable[[onnx.ModelProto], None]) -> Artifact:
    model = onnx.load_model(str(artifact.folder / "model.onnx"))
    change(model)
    return rewritten(artifact, {"model.onnx": model.SerializeToString()})


def number(name: str, place: int, new: Callable[[np.ndarray], object]) -> Callable[[onnx.ModelProto], None]:
    """One number of an initializer."""

    def change(model: onnx.ModelProto) -> None:
        held = next(one for one in model.graph.initializer if one.name == name)
        array = numpy_helper.to_array(held).copy()
        array.reshape(-1)[place] = new(array.reshape(-1)[place])
        held.CopyFrom(numpy_helper.from_array(array, name))

    return change


def attribute(node: str, name: str, value: object) -> Callable[[onnx.ModelProto], None]:
    def change(model: onnx.ModelProto) -> None:
        found = next(each for each in model.graph.node if each.name == node)
        for old in [each for each in found.attribute if each.name == name]:
            found.attribute.remove(old)
        found.attribute.append(helper.make_attribute(name, value))

    return change


def another(node: str, op_type: str) -> Callable[[onnx.ModelProto], None]:
    def change(model: onnx.ModelProto) -> None:
        next(each for each in model.graph.node if each.name == node).op_type = op_type

    return change


def without_grid(tensor: str) -> Callable[[onnx.ModelProto], None]:
    def change(model: onnx.ModelProto) -> None:
        graph = model.graph
        to_codes = next(n for n in graph.node if n.op_type == "QuantizeLinear" and n.input[0] == tensor)
        to_reals = next(n for n in graph.node if n.op_type == "DequantizeLinear" and n.input[0] == to_codes.output[0])
        for node in graph.node:
            node.input[:] = [tensor if name == to_reals.output[0] else name for name in node.input]
        graph.node.remove(to_codes)
        graph.node.remove(to_reals)

    return change


def up(value: np.ndarray) -> object:
    """The next number of a float32."""
    return np.nextafter(value, np.float32(np.inf))


FILE = [
    ("residual_cnn", "onnxruntime", number("conv3.bias_quantized", 5, lambda code: code + 1), "conv3.bias"),
    ("residual_cnn", "onnxruntime", number("right.weight_quantized", 77, lambda code: code + 1), "right.weight"),
    ("residual_cnn", "onnxruntime", number("left.weight_scale", 2, up), "left.weight"),
    ("residual_cnn", "onnxruntime", number("cat_scale", 0, up), "cat"),
    ("residual_cnn", "onnxruntime", another("relu2", "Identity"), "relu2"),
    ("residual_cnn", "onnxruntime", without_grid("avgpool"), "avgpool"),
    ("residual_cnn", "openvino", number("conv2.bias", 3, up), "conv2.bias"),
    ("residual_cnn", "openvino", attribute("conv2", "pads", [2, 1, 0, 1]), "conv2"),
    ("residual_cnn", "vitis", number("relu3_scale", 0, lambda scale: scale * 2), "relu3"),
    ("residual_cnn", "vitis", number("relu3_scale", 0, up), "relu3"),
    ("mobile_cnn", "onnxruntime", attribute("hardsigmoid", "alpha", 0.1684), "hardsigmoid"),
    ("transformer_block", "onnxruntime", attribute("norm1", "epsilon", 3e-5), "norm1"),
    ("transformer_block", "onnxruntime", attribute("gelu", "approximate", "tanh"), "gelu"),
    ("transformer_block", "onnxruntime", number("norm2.weight", 4, up), "norm2.weight"),
    ("transformer_block", "ncnn", number("truediv_constant", 0, lambda by: by * np.float32(1 + 1e-5)), "truediv"),
    ("transformer_block", "openvino", attribute("softmax", "axis", -2), "softmax"),
    ("unet", "onnxruntime", number("up.0.weight_phases_quantized", 40, lambda code: code + 1), "up.0.weight"),
]


@pytest.mark.parametrize(
    ("model", "backend", "change", "where"), FILE, ids=[f"{one[3]}-{one[1]}-{i}" for i, one in enumerate(FILE)]
)
def test_a_changed_file_is_caught_and_located(deployed, tmp_path, model, backend, change, where):
    artifact, inputs = deployed(model, backend, tmp_path / "out")
    verdict = changed(artifact, change).verify([inputs], latency=False)
    assert not verdict.holds
    assert verdict.problems[0].startswith(f"{where}: "), verdict.problems


def scale_of_flatten(manifest: dict) -> None:
    told = next(tensor for tensor in manifest["tensors"] if tensor["tensor"] == "flatten")
    told["scale"] = told["scale"] * 2


def floor_of_relu3(manifest: dict) -> None:
    next(tensor for tensor in manifest["tensors"] if tensor["tensor"] == "relu3")["scheme"]["rounding"] = "floor"


@pytest.mark.parametrize(("change", "where"), [(scale_of_flatten, "flatten"), (floor_of_relu3, "relu3")])
def test_a_changed_manifest_is_caught_and_located(deployed, tmp_path, change, where):
    """`flatten` has no grid of its own in a file for OpenVINO: it shares that of the pooling before it."""
    artifact, inputs = deployed("residual_cnn", "openvino", tmp_path / "out")
    verdict = rewritten(artifact, {}, change).verify([inputs], latency=False)
    assert not verdict.holds
    assert verdict.problems[0].startswith(f"{where}: "), verdict.problems


def test_a_wrong_rounding_of_ties_alone_is_caught(tmp_path, monkeypatch):
    """Half up in place of half to even: only numbers that lie between two codes move, here 4 of 2,048."""
    torch.manual_seed(0)
    x = torch.rand(8, 256) * 0.5
    net = torch.nn.Sequential(torch.nn.ReLU(), torch.nn.Linear(256, 4)).eval()
    prepared = detent.prepare(net, (x,), backend="onnxruntime")
    detent.calibrate(prepared, [x])
    (quantizer,) = prepared.activation_quantizers.values()
    scale = float(quantizer.qparams().scale)
    x[:4, 0] = scale * torch.tensor([0.5, 2.5, 4.5, 6.5])
    artifact = detent.deploy(prepared, tmp_path / "out")
    assert artifact.verify([x], latency=False).holds
    monkeypatch.setattr(quantizer, "forward", lambda v: torch.clamp(torch.floor(v / scale + 0.5), 0, 255) * scale)
    verdict = artifact.verify([x], latency=False)
    assert verdict.problems[0].startswith(f"{quantizer.name}: simulation vs file: 4 of 2,048 differ"), verdict.problems


def test_one_code_of_an_operation_in_float_is_caught(deployed, tmp_path, monkeypatch):
    """ONNX Runtime has no integer kernel for HardSigmoid. 1 of 16 codes moved by 1: float32 arithmetic allows it only
    where the number lies on the edge of a code."""
    artifact, inputs = deployed("mobile_cnn", "onnxruntime", tmp_path / "out")
    engine = ENGINES["onnxruntime"]
    tensors = engine.tensors

    def moved(self, given):
        found = tensors(self, given)
        codes = found["hardsigmoid"].copy()
        codes.reshape(-1)[3] += np.where(codes.reshape(-1)[3] < 200, 1, -1).astype(codes.dtype)
        return {**found, "hardsigmoid": codes}

    monkeypatch.setattr(engine, "tensors", moved)
    verdict = artifact.verify([inputs], latency=False)
    assert verdict.problems[0] == (
        "hardsigmoid: twin vs engine: 1 of 16 differ (0.062), at most 1 LSB, more than float32 arithmetic explains"
    )


def test_a_wrong_output_is_caught_where_other_operations_run_in_float(deployed, tmp_path, monkeypatch):
    artifact, inputs = deployed("mobile_cnn", "onnxruntime", tmp_path / "out")
    engine = ENGINES["onnxruntime"]
    run = engine.run
    monkeypatch.setattr(
        engine, "run", lambda self, given: {k: v * np.float32(1.001) for k, v in run(self, given).items()}
    )
    verdict = artifact.verify([inputs], latency=False)
    assert not verdict.holds
    assert verdict.problems[0].startswith("output: twin vs engine: 10 of 10 differ"), verdict.problems


class TwoHeads(torch.nn.Module):
    """An operation that ONNX Runtime has in float only, a convolution, and two outputs of one size."""

    def __init__(self, function: Callable[[torch.Tensor], torch.Tensor]):
        super().__init__()
        self.function = function
        self.first, self.inner = (torch.nn.Conv2d(channels, 8, 3, padding=1) for channels in (3, 8))
        self.one, self.two = (torch.nn.Conv2d(8, 4, 1) for _ in range(2))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x = torch.relu(self.inner(self.function(self.first(x))))
        return self.one(x), self.two(x)


@pytest.mark.pairwise(strength=1)
@pytest.mark.parametrize("shown", [True, False], ids=["tensors-inside-are-shown", "outputs-alone"])
@pytest.mark.parametrize("function", [torch.nn.functional.hardswish, torch.atan])
def test_an_output_that_is_another_tensor_is_caught_behind_an_operation_in_float(
    function, shown, tmp_path, monkeypatch
):
    """What an engine gives when it is run is judged, not what it shows of the same tensor; and where it shows nothing,
    what float32 arithmetic leaves open grows by roundings, not without bound."""
    torch.manual_seed(0)
    x = torch.randn(2, 3, 8, 8)
    prepared = detent.prepare(TwoHeads(function).eval(), (x,), backend="onnxruntime")
    detent.calibrate(prepared, [x])
    artifact = detent.deploy(prepared, tmp_path / "out")
    engine = ENGINES["onnxruntime"]
    run = engine.run
    if not shown:
        monkeypatch.setattr(engine, "tensors", lambda *_: {})
    verdict = artifact.verify([x], latency=False)
    assert verdict.holds, verdict
    assert verdict.in_float

    def crossed(self, given):
        found = run(self, given)
        first, second = found
        return {first: found[first], second: found[first]}

    monkeypatch.setattr(engine, "run", crossed)
    verdict = artifact.verify([x], latency=False)
    assert verdict.problems[0].startswith("two: twin vs engine: "), verdict


def test_one_code_of_an_output_is_caught_where_the_tensors_inside_are_shown(tmp_path, monkeypatch):
    torch.manual_seed(0)
    x = torch.randn(2, 3, 8, 8)
    prepared = detent.prepare(TwoHeads(torch.nn.functional.hardswish).eval(), (x,), backend="onnxruntime")
    detent.calibrate(prepared, [x])
    artifact = detent.deploy(prepared, tmp_path / "out")
    engine = ENGINES["onnxruntime"]
    run = engine.run

    def moved(self, given):
        found = run(self, given)
        second = found["output_1"].copy()
        second[second == second.max()] = second[second < second.max()].max()
        return {**found, "output_1": second}

    monkeypatch.setattr(engine, "run", moved)
    verdict = artifact.verify([x], latency=False)
    assert verdict.problems[0].startswith("two: twin vs engine: 1 of "), verdict


def test_the_last_bit_of_a_scale_in_an_ncnn_file_is_caught(deployed, tmp_path):
    """ncnn gives real numbers, which are claimed to be equal."""
    pytest.importorskip("ncnn", reason="ncnn runs the file")
    artifact, inputs = deployed("linear_bn", "ncnn", tmp_path / "out")
    param, content = artifact.path(".ncnn.param"), artifact.path(".ncnn.bin")
    model = NcnnModel.read(param.read_bytes(), content.read_bytes())
    layer = next(one for one in model.layers if one.int8 and not one.gives_codes)
    *codes, scales, of_input = layer.weights
    moved = replace(layer, weights=(*codes, np.nextafter(scales, np.float32(np.inf)), of_input))
    other = NcnnModel(tuple(moved if one is layer else one for one in model.layers))
    verdict = rewritten(artifact, {content.name: other.bin()}).verify([inputs], latency=False)
    assert not verdict.holds
    assert verdict.problems[0].startswith(f"{layer.outputs[0]}: twin vs engine"), verdict.problems


class Recurrent(torch.nn.Module):
    """Behind a function that no engine has on integers, so that what the layer reads is uncertain."""

    def __init__(self, layer: type[torch.nn.Module]):
        super().__init__()
        self.before, self.layer, self.after = (
            torch.nn.Linear(6, 8),
            layer(8, 6, batch_first=True),
            torch.nn.Linear(6, 3),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.after(self.layer(torch.tanh(self.before(x)))[0])


@pytest.mark.few(1)
@pytest.mark.parametrize(("layer", "backend"), [(torch.nn.LSTM, "onnxruntime"), (torch.nn.GRU, "ncnn")])
def test_a_weight_of_a_recurrent_layer_is_caught(layer, backend, tmp_path):
    """1 % of the largest, in `model.onnx` alone: simulation, file and engine then are three."""
    torch.manual_seed(0)
    x = torch.randn(4, 7, 6)
    prepared = detent.prepare(Recurrent(layer).eval(), (x,), backend=backend)
    detent.calibrate(prepared, [x])
    artifact = detent.deploy(prepared, tmp_path / "out")
    assert artifact.verify([x], latency=False).holds

    def another_weight(model: onnx.ModelProto) -> None:
        node = next(each for each in model.graph.node if each.op_type in ("LSTM", "GRU"))
        held = next(one for one in model.graph.initializer if one.name == node.input[2])
        array = numpy_helper.to_array(held).copy()
        array.reshape(-1)[5] += 0.01 * np.abs(array).max()
        held.CopyFrom(numpy_helper.from_array(array, held.name))

    verdict = changed(artifact, another_weight).verify([x], latency=False)
    assert verdict.problems[0].startswith("layer/"), verdict
    assert "simulation vs file: " in verdict.problems[0]


class Halves(torch.nn.Module):
    """Parts of a tuple have a name of their own in torch, and another in the file."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = torch.nn.Conv2d(3, 8, 1), torch.nn.Conv2d(4, 4, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        a, b = torch.chunk(self.first(x), 2, dim=1)
        return self.second(torch.sigmoid(a)) + b


def test_the_parts_of_a_tuple_are_compared_under_their_names_in_the_file(tmp_path):
    torch.manual_seed(0)
    x = torch.randn(2, 3, 6, 6)
    prepared = detent.prepare(Halves().eval(), (x,), backend="onnxruntime")
    detent.calibrate(prepared, [x])
    artifact = detent.deploy(prepared, tmp_path / "out")
    verdict = artifact.verify([x], latency=False)
    assert verdict.holds
    assert artifact.manifest["names"] == {"getitem": "chunk.0", "getitem_1": "chunk.1"}
    assert {"chunk.0", "chunk.1"} <= {found.tensor for found in verdict.tensors if found.what == "simulation vs file"}


def test_ties_of_a_tensor_that_others_read_in_float_are_rounded_as_the_target_does(tmp_path):
    """ncnn rounds halves away from zero, ONNX to even: no false alarm where one reads codes, another real numbers."""

    class Both(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = torch.nn.Conv2d(3, 4, 1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = torch.relu(x)
            return self.conv(x) + x[:, :1]

    torch.manual_seed(0)
    x = torch.rand(1, 3, 8, 8)
    prepared = detent.prepare(Both().eval(), (x,), backend="ncnn")
    detent.calibrate(prepared, [x])
    scale = float(prepared.activation_quantizers["relu"].qparams().scale)
    x[0, 0, 0, :4] = scale * torch.tensor([0.5, 2.5, 4.5, 40.5])
    artifact = detent.deploy(prepared, tmp_path / "out")
    assert artifact.verify([x], latency=False).holds


def test_what_a_target_computes_otherwise_than_simulated_is_said(tmp_path):
    """FBGEMM's depthwise kernel adds up pairs of products that saturate at 16 bits. Twin and engine agree on it."""
    torch.manual_seed(0)
    net, inputs = MODELS["mobile_cnn"].build().eval(), MODELS["mobile_cnn"].inputs()
    prepared = detent.prepare(net, inputs, backend="torch_x86", recipe=Recipe(name="wide", weight={"bits": 8}))
    detent.calibrate(prepared, [inputs])
    verdict = detent.deploy(prepared, tmp_path / "out").verify([inputs], latency=False)
    assert verdict.holds
    assert "depthwise" in [difference.tensor for difference in verdict.unlike]
    assert verdict.line.endswith(
        "; but one operation differs from the simulation on this target, by at most 12 LSB (depthwise)"
    )


def test_a_file_that_cannot_be_run_is_a_verdict_if_it_is_known_to_be_wrong(deployed, tmp_path):
    artifact, inputs = deployed("residual_cnn", "vitis", tmp_path / "out")
    verdict = changed(artifact, number("relu3_scale", 0, up)).verify([inputs])
    assert verdict.line.startswith("FAIL: relu3: model.onnx has ")
    assert verdict.notes[0].startswith(
        "nothing was computed: compute 'relu3' as a DPU: it has a scale that is not a power"
    )
    assert json.loads(json.dumps(verdict.to_dict()))["holds"] is False


@pytest.mark.parametrize("name", ["w", "b"])
def test_a_parameter_of_a_network_from_an_onnx_file_is_compared_by_the_name_it_has_there(name, tmp_path):
    generator = np.random.default_rng(0)
    held = {"w": generator.normal(size=(16, 8)), "b": generator.normal(size=8)}
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["p"], "product"),
        helper.make_node("Add", ["p", "b"], ["y"], "sum"),
    ]
    ends = [helper.make_tensor_value_info(end, 1, ["batch", size]) for end, size in (("x", 16), ("y", 8))]
    values = [numpy_helper.from_array(array.astype(np.float32), key) for key, array in held.items()]
    graph = helper.make_graph(nodes, "linear", ends[:1], ends[1:], values)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save_model(model, str(tmp_path / "linear.onnx"))
    x = torch.randn(4, 16, generator=torch.Generator().manual_seed(0))
    artifact = detent.quantize(tmp_path / "linear.onnx", [x], backend="onnxruntime", folder=tmp_path / "out")
    assert artifact.verify([x], latency=False).holds

    def one_more(changed_model: onnx.ModelProto) -> None:
        codes = next(one.name for one in changed_model.graph.initializer if one.name in (f"{name}_quantized", name))
        number(codes, 3, lambda value: value + 1)(changed_model)

    verdict = changed(artifact, one_more).verify([x], latency=False)
    assert verdict.problems[0].startswith(f"{name}: model.onnx has "), verdict.problems

"""What a writer puts into a vendor's file, changed a little: verify names the tensor, without running the file."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import numpy_helper
from torch import nn

import detent
from detent.artifact import Artifact
from detent.ir.package import MANIFEST, digest
from detent.targets import BACKENDS
from detent.targets.base import Format, TensorFacts, Written
from detent.targets.esp_dl.container import EspModel
from detent.targets.formats import FORMATS, find_format, register
from detent.targets.litert.file import read_tflite, to_bytes
from detent.targets.mnn.compression import Compression
from detent.verification.vendor_files import unchecked_files, vendor_disagreements
from tests.models import MODELS

Change = Callable[[bytes], bytes]
HEAVY = ("executorch_xnnpack", "executorch_8da4w", "gguf", "compressed_tensors")
"""Lowered by a library of its own, in an environment of its own; for language models alone (tests/targets/gguf)."""


@pytest.fixture(scope="module")
def deployed(tmp_path_factory):
    """A network for a backend, deployed once."""
    made: dict[tuple[str, str], Artifact] = {}

    def artifact(backend: str, model: str = "residual_cnn") -> Artifact:
        if (backend, model) not in made:
            torch.manual_seed(0)
            entry = MODELS[model]
            net, inputs = entry.build().eval(), entry.inputs()
            prepared = detent.prepare(net, inputs, backend=backend)
            detent.calibrate(prepared, [inputs])
            made[backend, model] = detent.deploy(prepared, tmp_path_factory.mktemp("made") / "out")
        return made[backend, model]

    return artifact


LINEAR_ONLY = ("onnxruntime_genai", "onnxruntime_genai_a8", "openvino_llm")
"""Convolutions are float there."""

CASES = [(name, model) for name in BACKENDS if name not in HEAVY for model in ("residual_cnn", "transformer_block")]
CASES = [case for case in CASES if case not in {(name, "residual_cnn") for name in LINEAR_ONLY}]
CASES.remove(("esp_dl", "transformer_block"))  # it has no layer norm
CASES.append(("litert", "reused_module"))  # one bias, float in model.onnx, on two grids


@pytest.mark.pairwise(goals=lambda backend, model: [backend, model])
@pytest.mark.parametrize(("backend", "model"), CASES)
def test_what_is_written_is_what_the_manifest_says(deployed, backend, model):
    assert list(vendor_disagreements(deployed(backend, model))) == []


def text(old: str, new: str) -> Change:
    """The first place where a pattern is found."""

    def change(content: bytes) -> bytes:
        found = re.sub(old, new, content.decode(), count=1)
        assert found.encode() != content
        return found.encode()

    return change


def entry_at(*path: str | int, to: Callable[[object], object]) -> Change:
    """One value of a JSON file."""

    def change(content: bytes) -> bytes:
        listed = json.loads(content)
        at = listed
        for key in path[:-1]:
            at = at[key]
        at[path[-1]] = to(at[path[-1]])
        return json.dumps(listed).encode()

    return change


def without(*path: str) -> Change:
    def change(content: bytes) -> bytes:
        listed = json.loads(content)
        at = listed
        for key in path[:-1]:
            at = at[key]
        del at[path[-1]]
        return json.dumps(listed).encode()

    return change


def initializer(name: str) -> Change:
    """The first number of one, a last bit larger."""

    def change(content: bytes) -> bytes:
        model = onnx.load_model_from_string(content)
        held = next(one for one in model.graph.initializer if one.name == name)
        array = numpy_helper.to_array(held).copy()
        array.reshape(-1)[:1] = np.nextafter(array.reshape(-1)[:1], np.float32(np.inf))
        held.CopyFrom(numpy_helper.from_array(array, name))
        return model.SerializeToString()

    return change


def tflite(content: bytes) -> bytes:
    model = read_tflite(content)
    at = next(i for i, t in enumerate(model.tensors) if t.name == "relu1" and t.encoding is not None)
    tensors = list(model.tensors)
    tensors[at] = replace(tensors[at], encoding=replace(tensors[at].encoding, zero_point=np.int64(-127)))
    return to_bytes(replace(model, tensors=tuple(tensors)))


def tflite_weight(content: bytes) -> bytes:
    model = read_tflite(content)
    at = next(i for i, t in enumerate(model.tensors) if t.name == "conv2.weight")
    tensors = list(model.tensors)
    data = tensors[at].data.copy()
    data.reshape(-1)[3] += 1
    tensors[at] = replace(tensors[at], data=data)
    return to_bytes(replace(model, tensors=tuple(tensors)))


def espdl(content: bytes) -> bytes:
    model = EspModel.from_bytes(content)
    values = [replace(v, exponents=(v.exponents[0] + 1,)) if v.name == "relu1" else v for v in model.values]
    return replace(model, values=values).to_bytes()


def compression(content: bytes) -> bytes:
    first, *rest = Compression.from_message(content).layers
    return Compression(
        (replace(first, weight=replace(first.weight, scales=first.weight.scales[::-1])), *rest)
    ).message()


def one_more(value: object) -> object:
    return value + 1  # type: ignore[operator]


def double(value: object) -> object:
    return [2 * one for one in value] if isinstance(value, list) else 2 * value  # type: ignore[operator]


class Largest(nn.Module):
    def __init__(self):
        super().__init__()
        self.before, self.behind = nn.Conv2d(3, 4, 3), nn.Conv2d(2, 3, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.before(x)
        return self.behind(torch.cat([x.amax(1, keepdim=True), x.mean(1, keepdim=True)], 1))


def test_a_tensor_is_on_its_grid_behind_what_keeps_that_of_its_input(tmp_path):
    """TFLite's maximum is on the grid of what it reads, and then put on its own: two tensors of the file."""
    torch.manual_seed(0)
    inputs = (torch.randn(2, 3, 8, 8),)
    prepared = detent.prepare(Largest().eval(), inputs, backend="litert")
    detent.calibrate(prepared, [inputs])
    artifact = detent.deploy(prepared, tmp_path / "out")
    grids = {one.name: one.encoding for one in read_tflite((artifact.folder / "model.tflite").read_bytes()).tensors}
    assert grids["amax/amax"] == grids["before"] != grids["amax/amax_quantized"]
    assert list(vendor_disagreements(artifact)) == []

    def change(content: bytes) -> bytes:
        model = read_tflite(content)
        doubled = [
            replace(one, encoding=replace(one.encoding, scale=one.encoding.scale * 2))
            if one.name == "amax/amax_quantized"
            else one
            for one in model.tensors
        ]
        return to_bytes(replace(model, tensors=tuple(doubled)))

    (found,) = vendor_disagreements(rewritten(artifact, tmp_path / "wrong", "model.tflite", change))
    assert found.startswith("amax/amax: model.tflite has ")


WRONG: list[tuple[str, str, Change, str]] = [
    ("acl", "acl_tensors.json", entry_at("relu1", "scale", to=double), "relu1"),
    ("acl", "acl_tensors.json", entry_at("relu1", "data_type", to=lambda _: "QASYMM8"), "relu1"),
    ("acl", "acl_tensors.json", without("avgpool"), "avgpool"),
    ("ascend", "ascend_record.txt", text(r"(scale_d: )(\S+)", r"\g<1>0.5"), "conv1"),
    ("ascend", "ascend_record.txt", text(r"(offset_d: )(\S+)", r"\g<1>3"), "conv1"),
    ("esp_dl", "model.espdl", espdl, "relu1"),
    ("litert", "model.tflite", tflite, "relu1"),
    ("litert", "model.tflite", tflite_weight, "conv2.weight"),
    ("metax", "ppq_config.json", entry_at("values", "1", "scale", to=double), "x"),
    ("mnn", "model.mnn_compression.bin", compression, "conv1.weight"),
    ("ncnn", "model.table", text(r"(conv1_param_0 )(\S+)", r"\g<1>0.5"), "conv1"),
    ("ncnn", "model.ncnn.bin", lambda content: content[:-4] + np.float32(3.5).tobytes(), "fc"),
    ("nnie", "nnie_gfpq.json", entry_at("nnie", "gfpq_param_dict", "conv1", to=double), "conv1"),
    ("nxp", "nxp.onnx", initializer("relu1_max"), "relu1"),
    ("openvino", "model.xml", text(r'(name="conv2.bias"[\s\S]*?offset=")(\d+)', r"\g<1>0"), "conv2.bias"),
    ("openvino", "model.xml", text("relu1/DequantizeLinear", "relu3/DequantizeLinear"), "relu3"),
    ("ppl_cuda", "ppl_quantization.json", entry_at("quant_info", "relu1", "bit_width", to=one_more), "relu1"),
    ("ppl_w8a16", "ppl_quantization.json", entry_at("ppl", "relu1", "max", to=double), "relu1"),
    ("rknn", "rknn.quantization.cfg", text(r"zero_point: \[(-?\d+)\]", "zero_point: [17]"), "x"),
    (
        "snpe",
        "quantization_overrides_0.6.1.json",
        entry_at("activation_encodings", "relu1", 0, "offset", to=one_more),
        "relu1",
    ),
    ("snpe", "quantization_overrides_1.0.0.json", entry_at("activation_encodings", 0, "scale", to=double), "x"),
    ("snpe", "snpe_encodings.json", entry_at("activation_encodings", "relu1", 0, "min", to=one_more), "relu1"),
    ("snpe", "float.onnx", initializer("conv2.weight"), "conv2.weight"),
    ("stpu", "stpu_minmax.json", entry_at("conv1_weights", "max", to=double), "conv1"),
    ("tengine", "tengine.scale", text(r"(relu1 \S+ )(\d+)", r"\g<1>9"), "relu1"),
    ("tensorrt", "tensorrt_ranges.json", entry_at("act_quant_info", "relu1", to=double), "relu1"),
    ("tensorrt", "tensorrt_calibration.cache", text(r"relu1: (\w+)", "relu1: 3d000000"), "relu1"),
    ("torch_x86", "model.json", entry_at("grids", "relu1_quantized", "zero_point", to=one_more), "relu1"),
    ("tvm", "qlinear.onnx", initializer("relu1_scale"), "relu1"),
    ("vitis", "clip_ranges.json", entry_at("vitis", "relu1", "scale", to=double), "relu1"),
    ("vitis", "quant_info.json", entry_at("output", "relu1", 0, 1, to=one_more), "relu1"),
]


@pytest.mark.parametrize(
    ("backend", "file", "change", "where"), WRONG, ids=[f"{one[0]}-{one[1]}-{i}" for i, one in enumerate(WRONG)]
)
def test_a_wrong_file_is_located(deployed, tmp_path, backend, file, change, where):
    artifact = rewritten(deployed(backend), tmp_path / "out", file, change)
    found = list(vendor_disagreements(artifact))
    assert found
    assert all(one.startswith(f"{where}: {file} ") for one in found), found


def test_what_is_written_are_the_files_that_a_format_names(deployed):
    for backend in (name for name in BACKENDS if name not in HEAVY):
        model = "transformer_block" if backend in LINEAR_ONLY else "residual_cnn"
        for name, files in deployed(backend, model).manifest["formats"].items():
            assert files == sorted(find_format(name).files)


def test_every_format_is_checked_but_for_programs_of_executorch(deployed):
    unread = {name for name in FORMATS if all(roles is None for roles in find_format(name).files.values())}
    assert unread == {"onnx", "pte", "pte_8da4w"}  # model.onnx is compared tensor by tensor
    assert all(list(unchecked_files(deployed(name))) == [] for name in ("openvino", "mnn", "esp_dl", "vitis"))


class Own(Format):
    """A file of scales, which is not read back."""

    name = "own_scales"
    files: Mapping[str, Any] = {"own.json": None}

    def write(self, deployment):
        scales = {one.tensor: one.scale.tolist() for one in deployment.activations}
        return Written({"own.json": json.dumps(scales).encode()})


class OwnWithFacts(Own):
    name = "own_scales_read_back"
    files: Mapping[str, Any] = {"own.json": ("activation",)}

    def facts(self, file, files):
        yield from (TensorFacts(name, {"scale": scale}) for name, scale in json.loads(files[file]).items())


def test_a_format_of_ones_own_is_read_back(tmp_path):
    register(OwnWithFacts())
    entry = MODELS["residual_cnn"]
    prepared = detent.prepare(entry.build().eval(), entry.inputs(), backend="tensorrt")
    detent.calibrate(prepared, [entry.inputs()])
    artifact = detent.deploy(prepared, tmp_path / "out", files=["own_scales_read_back"])
    assert list(vendor_disagreements(artifact)) == []
    assert list(unchecked_files(artifact)) == []
    wrong = rewritten(artifact, tmp_path / "wrong", "own.json", entry_at("relu1", to=double))
    (found,) = vendor_disagreements(wrong)
    assert found.startswith("relu1: own.json has ")


def test_what_cannot_be_read_back_is_said_to_be_unchecked(tmp_path, monkeypatch):
    register(Own())
    entry = MODELS["residual_cnn"]
    prepared = detent.prepare(entry.build().eval(), entry.inputs(), backend="tensorrt")
    detent.calibrate(prepared, [entry.inputs()])
    artifact = detent.deploy(prepared, tmp_path / "out", files=["own_scales"])
    note = "own.json: not checked, because the format 'own_scales' is not read back"
    assert note in artifact.verify([entry.inputs()], latency=False).notes
    monkeypatch.delitem(FORMATS._table, "own_scales")  # as in a process that did not register it
    assert list(unchecked_files(artifact)) == [note]


def test_a_file_that_cannot_be_read_is_a_problem(deployed, tmp_path):
    artifact = rewritten(deployed("vitis"), tmp_path / "out", "quant_info.json", lambda _: b"[]")
    assert list(vendor_disagreements(artifact)) == [
        "quant_info.json: it cannot be read: it holds a list, not an object"
    ]


def test_it_is_a_claim_of_the_verdict(deployed, tmp_path):
    """The network in `model.onnx` is right, and the engine runs that."""
    change = entry_at("activation_encodings", "relu1", 0, "offset", to=one_more)
    artifact = rewritten(deployed("snpe"), tmp_path / "out", "quantization_overrides_0.6.1.json", change)
    verdict = artifact.verify([MODELS["residual_cnn"].inputs()], latency=False)
    assert not verdict.holds
    assert verdict.line == ("FAIL: relu1: quantization_overrides_0.6.1.json has 1 as its offset, the manifest 0")


def rewritten(artifact: Artifact, folder: Path, file: str, change: Change) -> Artifact:
    """As if a writer had made it so."""
    shutil.copytree(artifact.folder, folder)
    manifest = json.loads((folder / MANIFEST).read_text())
    content = change((folder / file).read_bytes())
    (folder / file).write_bytes(content)
    manifest["files"][file] = digest(content)
    (folder / MANIFEST).write_text(json.dumps(manifest))
    loaded = Artifact.load(folder)
    return Artifact(loaded.folder, loaded.manifest, artifact.prepared)

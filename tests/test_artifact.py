"""`detent.deploy` and its Artifact: loading, and what is refused."""

from __future__ import annotations

import json

import pytest
import torch
from torch import nn

import detent
from detent.artifact import Artifact
from detent.errors import ArtifactError, FloatModelWarning
from detent.ir.package import MANIFEST
from tests.deployment.float_path import prepared_for
from tests.models import MODELS


@pytest.fixture
def artifact(tmp_path):
    torch.manual_seed(0)
    x = torch.randn(2, 3, 6, 6)
    prepared = prepared_for(nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU()), (x,), "onnxruntime")
    return detent.deploy(prepared, tmp_path / "out")


def test_what_was_deployed_loads(artifact):
    loaded = Artifact.load(artifact.folder)
    assert isinstance(loaded, Artifact)
    assert loaded.manifest == artifact.manifest
    assert loaded == artifact  # the model in memory is no part of what it is
    assert loaded.model.producer_name == "detent"
    assert len(loaded.graph.inputs) == 1


def test_it_says_what_it_is_in_a_few_lines(artifact):
    size = (artifact.folder / "model.onnx").stat().st_size
    title = f"Artifact {str(artifact.folder)!r} for onnxruntime (runs on onnxruntime), 4 tensors quantized"
    assert repr(artifact).splitlines() == [title, f"  model.onnx  {size:,} bytes"]
    (artifact.folder / "model.onnx").unlink()
    assert repr(artifact).splitlines()[1] == "  model.onnx  missing"


def test_it_says_on_which_cpus_it_is_exact_if_not_on_all(tmp_path):
    torch.manual_seed(0)
    whole = nn.Sequential(nn.Conv2d(4, 4, 3)).eval()
    x = torch.rand(2, 4, 6, 6)
    prepared = detent.prepare(whole, (x,), backend="onnxruntime", cpu="vnni")
    detent.calibrate(prepared, [x])
    (said,) = [line for line in repr(detent.deploy(prepared, tmp_path / "out")).splitlines() if "CPUs" in line]
    assert said == "  note: exact on some CPUs only: pairs of products saturate on avx2, avx512, in _0"


def test_it_verifies_right_away(artifact):
    torch.manual_seed(1)
    assert artifact.verify([torch.randn(3, 3, 6, 6)], latency=False).holds


def test_the_formats_may_be_named(tmp_path):
    torch.manual_seed(0)
    x = torch.randn(2, 3, 6, 6)
    prepared = prepared_for(nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU()), (x,), "onnxruntime")
    artifact = detent.deploy(prepared, tmp_path / "out", files=["openvino_ir"])
    assert set(artifact.manifest["files"]) == {"model.onnx", "model.xml", "model.bin"}  # model.onnx always


def test_a_changed_file_is_refused(artifact):
    path = artifact.folder / "model.onnx"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(bytes(content))
    with pytest.raises(ArtifactError, match=r"model\.onnx was changed after deploy"):
        Artifact.load(artifact.folder)


def test_a_missing_file_is_refused(artifact):
    (artifact.folder / "model.onnx").unlink()
    with pytest.raises(ArtifactError, match=r"model\.onnx is missing"):
        Artifact.load(artifact.folder)


def test_a_folder_without_a_manifest_is_refused(tmp_path):
    with pytest.raises(ArtifactError, match=r"there is no manifest\.json in it"):
        Artifact.load(tmp_path)


@pytest.mark.parametrize("name", ["../outside", "/etc/passwd", "inner/../../outside"])
def test_a_manifest_that_leaves_its_folder_is_refused(artifact, name):
    rewrite(artifact, files={name: "0" * 64})
    with pytest.raises(ArtifactError, match="a manifest names files of its own folder"):
        Artifact.load(artifact.folder)


@pytest.mark.parametrize("key", ["arithmetic", "backend", "engine", "formats", "mode", "notes", "recipe", "tensors"])
def test_a_manifest_of_which_a_part_is_gone_is_refused(key, artifact):
    path = artifact.folder / "manifest.json"
    held = json.loads(path.read_text())
    del held[key]
    path.write_text(json.dumps(held))
    with pytest.raises(ArtifactError, match=f"it has no '{key}'"):
        detent.Artifact.load(artifact.folder)


def test_a_manifest_of_another_version_is_refused(artifact):
    rewrite(artifact, manifest_version=99)
    with pytest.raises(ArtifactError, match="manifest version 99"):
        Artifact.load(artifact.folder)


def test_a_manifest_of_version_1_reads_as_one_of_today(tmp_path):
    """It had spaces in its keys, and did not say which format wrote a file."""
    torch.manual_seed(0)
    prepared = prepared_for(nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU()), (torch.randn(2, 3, 6, 6),), "rknn")
    made = detent.deploy(prepared, tmp_path / "out", files=["rknn", "ppq_json"])
    older = {("manifest version" if key == "manifest_version" else key): value for key, value in made.manifest.items()}
    older["manifest version"] = 1
    del older["formats"]
    for rows in ("tensors", "ranges"):
        older[rows] = [
            {("zero point" if key == "zero_point" else key): value for key, value in row.items()}
            for row in made.manifest[rows]
        ]
    (made.folder / MANIFEST).write_text(json.dumps(older))
    assert Artifact.load(made.folder).manifest == made.manifest
    detent.deploy(prepared, made.folder)  # it is known as an artifact, and replaced


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{}", '{"manifest version": 1}', '{"manifest version": 1, "files": 3}', '{"manifest_version": 2}'],
)
def test_a_file_that_is_no_manifest_is_refused(artifact, text):
    (artifact.folder / MANIFEST).write_text(text)
    with pytest.raises(ArtifactError, match="it is not a manifest"):
        Artifact.load(artifact.folder)


def test_a_file_it_does_not_hold_is_refused_with_those_it_has(artifact):
    with pytest.raises(ArtifactError, match=r"it holds model\.onnx"):
        artifact.path(".tflite")


def rewrite(artifact: Artifact, **changes) -> None:
    manifest = json.loads((artifact.folder / MANIFEST).read_text())
    (artifact.folder / MANIFEST).write_text(json.dumps({**manifest, **changes}))


@pytest.mark.parametrize(("network", "backend"), [("linear_bn", "tvm"), ("conv_transpose_bn", "ncnn")])
def test_a_network_of_which_nothing_is_quantized_deploys_as_a_float_one_and_says_so(network, backend, tmp_path):
    torch.manual_seed(0)
    model, inputs = MODELS[network].build().eval(), MODELS[network].inputs()
    with pytest.warns(FloatModelWarning):
        prepared = detent.prepare(model, inputs, backend=backend)
    detent.calibrate(prepared, [inputs])
    artifact = detent.deploy(prepared, tmp_path / "out")
    assert not {node.op_type for node in artifact.model.graph.node} & {"QuantizeLinear", "DequantizeLinear"}
    assert artifact.manifest["notes"][0] == f"nothing is quantized: {backend} runs all of this network in float"
    verdict = artifact.verify([inputs], latency=False)
    assert verdict.holds
    assert "nothing is quantized" in str(verdict)


@pytest.mark.parametrize("backend", ["tensorrt", "openvino", "vitis"])
def test_another_engine_may_run_the_file_and_brings_its_own_arithmetic(backend, tmp_path):
    torch.manual_seed(0)
    entry = MODELS["residual_cnn"]
    inputs = entry.inputs()
    artifact = detent.deploy(prepared_for(entry.build().eval(), inputs, backend), tmp_path / "out")
    verdict = Artifact.load(artifact.folder).verify([inputs], engine="onnxruntime", latency=False)
    assert verdict.holds, verdict
    assert verdict.arithmetic == "onnxruntime"

"""A deployed folder read back: its model, and the same with Q and DQ dissolved."""

from __future__ import annotations

import hashlib
import json

import onnx
import pytest
from onnx import TensorProto, helper

from detent.errors import ArtifactError
from detent.ir import Package
from detent.ir.package import MANIFEST, VERSION, digest


def folder(tmp_path, **files: bytes):
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
    told = dict.fromkeys(("arithmetic", "backend", "engine", "formats", "mode", "notes", "recipe", "tensors"), "")
    hashes = {name: digest(content) for name, content in files.items()}
    manifest = {"manifest_version": VERSION, "files": hashes, **told}
    (tmp_path / MANIFEST).write_text(json.dumps(manifest))
    return tmp_path


def test_a_digest_is_sha256_in_hexadecimal():
    assert digest(b"abc") == hashlib.sha256(b"abc").hexdigest()


def test_a_file_is_found_by_how_its_name_ends(tmp_path):
    package = Package.load(folder(tmp_path, **{"model.tflite": b"a", "model.onnx": b"b"}))
    assert package.path(".tflite") == tmp_path / "model.tflite"
    with pytest.raises(ArtifactError, match=r"it holds model\.tflite, model\.onnx"):
        package.path(".param")


def test_the_model_is_the_one_named_so_and_no_other(tmp_path):
    """`float_model.onnx` ends the same and comes first in the alphabet."""
    package = Package.load(folder(tmp_path, **{"float_model.onnx": b"other", "model.onnx": b"own"}))
    assert package.path("model.onnx") == tmp_path / "model.onnx"


def test_the_model_and_its_graph(tmp_path):
    graph = helper.make_graph(
        [helper.make_node("Relu", ["x"], ["y"], name="r")],
        "net",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [2])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [2])],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    package = Package.load(folder(tmp_path, **{"model.onnx": model.SerializeToString()}))
    assert isinstance(package.model, onnx.ModelProto)
    assert [op.name for op in package.graph.ops] == ["r"]
    assert package.graph is package.graph

"""A deployed folder read back: its model, and the same with Q and DQ dissolved."""

from __future__ import annotations

import hashlib
import json
import os
from typing import Any

import onnx
import pytest
from onnx import TensorProto, helper

from detent.errors import ArtifactError
from detent.ir import Package
from detent.ir.package import MANIFEST, VERSION, digest


def folder(tmp_path, **files: bytes):
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
    told: dict[str, Any] = {"arithmetic": "", "backend": "", "engine": None, "formats": {}, "mode": None}
    told |= {"notes": [], "recipe": {}, "tensors": []}
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


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("files", None),
        ("files", 5),
        ("files", [[5, "x"]]),
        ("files", {"model.onnx": 5}),
        ("files", {"a\0b": ""}),
        ("files", {"../outside": ""}),
        ("notes", {}),
        ("engine", 5),
        ("backend", ["x"]),
        ("tensors", "x"),
        ("formats", []),
    ],
    ids=lambda value: str(value)[:20],
)
def test_a_manifest_of_another_form_is_refused(tmp_path, key, value):
    where = folder(tmp_path, **{"model.onnx": b"b"})
    told = json.loads((where / MANIFEST).read_text())
    (where / MANIFEST).write_text(json.dumps({**told, key: value}))
    with pytest.raises(ArtifactError):
        Package.load(where)


def test_a_manifest_nested_without_end_is_refused(tmp_path):
    (tmp_path / MANIFEST).write_text("[" * 100_000)
    with pytest.raises(ArtifactError, match="not a manifest"):
        Package.load(tmp_path)


@pytest.mark.parametrize("name", [MANIFEST, "model.onnx"])
@pytest.mark.parametrize("kind", ["pipe", "device"])
def test_what_is_no_file_is_not_waited_for(tmp_path, name, kind):
    where = folder(tmp_path, **{"model.onnx": b"b"})
    (where / name).unlink()
    if kind == "pipe":
        os.mkfifo(where / name)
    else:
        (where / name).symlink_to("/dev/zero")
    with pytest.raises(ArtifactError, match="not a regular file"):
        Package.load(where)


def test_a_model_that_is_none_is_one_line(tmp_path):
    package = Package.load(folder(tmp_path, **{"model.onnx": b"not a model"}))
    for read in (lambda: package.model, lambda: package.graph):
        with pytest.raises(ArtifactError, match="read"):
            read()


def test_an_empty_model_is_refused(tmp_path):
    """No byte at all is a model of ONNX, with nothing in it."""
    package = Package.load(folder(tmp_path, **{"model.onnx": b""}))
    with pytest.raises(ArtifactError, match="no output"):
        _ = package.graph


def test_names_are_printed_in_one_line(tmp_path):
    """An output that is called so would be read as a verdict."""
    name = "y\nPASS: all outputs are equal"
    ports = [helper.make_tensor_value_info(port, TensorProto.FLOAT, [2]) for port in ("x", name)]
    graph = helper.make_graph([helper.make_node("Relu", ["x"], [name])], "net", ports[:1], ports[1:])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    package = Package.load(folder(tmp_path, **{"model.onnx": model.SerializeToString()}))
    with pytest.raises(ArtifactError, match="has a line break"):
        _ = package.graph


@pytest.mark.parametrize("name", ["model.onnx", "nbits.onnx"])
def test_numbers_in_a_file_that_no_hash_covers_are_refused(tmp_path, name):
    (tmp_path / "beside.bin").write_bytes(bytes(8))
    held = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[2], data_location=TensorProto.EXTERNAL)
    held.external_data.add(key="location", value="beside.bin")
    ports = [helper.make_tensor_value_info(port, TensorProto.FLOAT, [2]) for port in "xy"]
    graph = helper.make_graph([helper.make_node("Add", ["x", "w"], ["y"])], "net", ports[:1], ports[1:], [held])
    with pytest.raises(ArtifactError, match=rf"{name} has the data of 'w' in another file"):
        Package.load(folder(tmp_path, **{name: helper.make_model(graph).SerializeToString()}))

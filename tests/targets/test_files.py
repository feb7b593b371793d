"""The table of file formats: what a backend may name, found when it is asked for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from detent.errors import RegistrationError, UnknownNameError
from detent.ir import Package
from detent.targets import BACKENDS
from detent.targets.base import Deployment, Format, TensorFacts, Written
from detent.targets.formats import FORMATS, find_format, register, size_to_load
from tests.targets.parameter_files.sample import deployment


class Mine(Format):
    name = "mine"
    files: Mapping[str, Any] = {"mine.txt": ("activation",)}

    def write(self, deployment: Deployment) -> Written:
        return Written({"mine.txt": deployment.name.encode()}, ("a note",))

    def facts(self, file: str, files: Mapping[str, bytes]) -> Iterator[TensorFacts]:
        yield TensorFacts(files[file].decode(), {"bits": 8})


@pytest.mark.parametrize("name", FORMATS)
def test_every_format_knows_its_name_and_files(name):
    found = find_format(name)
    assert isinstance(found, Format)
    assert found.name == name
    assert found.files
    assert found.weights is None or found.weights in found.files


def test_the_file_to_load_is_one_that_holds_weights(tmp_path):
    """MNN's parameters are in a .bin, which is smaller than the two networks."""
    sizes = {"model.onnx": 70, "model.float.onnx": 200, "model.mnn_compression.bin": 9, "manifest.json": 5}
    for name, size in sizes.items():
        (tmp_path / name).write_bytes(bytes(size))
    manifest = {"files": sizes, "formats": {"onnx": ["model.onnx"], "mnn_compression": [], "of a lost package": []}}
    package = Package(folder=tmp_path, manifest=manifest)
    assert size_to_load(package) == 70
    (tmp_path / "model.float.onnx").write_bytes(bytes(60))
    assert size_to_load(package) == 60


@pytest.mark.parametrize("name", FORMATS)
def test_a_format_that_names_roles_has_facts(name):
    found = find_format(name)
    compared = any(roles is not None for roles in found.files.values())
    assert compared == (type(found).facts is not Format.facts)


@pytest.mark.parametrize("backend", BACKENDS)
def test_every_backend_names_formats_that_are_known(backend):
    assert set(BACKENDS[backend].files) <= set(FORMATS)


def test_an_unknown_format_answers_with_those_that_are_known():
    with pytest.raises(UnknownNameError, match="format 'onyx'") as caught:
        find_format("onyx")
    assert "onnx" in caught.value.found
    assert "vitis_quant_info" in caught.value.found


def test_a_format_of_ones_own():
    mine = Mine()
    register(mine)
    assert find_format("mine") is mine
    with pytest.raises(RegistrationError, match="'mine'"):
        register(Mine())


def test_a_function_is_deprecated_and_works():
    def write(made):
        made.notes.append("it said so")
        return {"older.txt": made.name.encode()}

    with pytest.warns(DeprecationWarning, match="register a Format"):
        register("older", write)
    made = deployment("tensorrt")
    first, second = (find_format("older").write(made) for _ in range(2))
    assert first == second == Written({"older.txt": made.name.encode()}, ("it said so",))
    assert list(made.notes) == []


def test_a_name_without_a_function_is_refused():
    with pytest.raises(RegistrationError, match="give a Format"):
        register("nothing")


@pytest.mark.parametrize("name", ["onnx", "vitis_quant_info"])
def test_a_name_that_is_taken_is_refused(name):
    mine = Mine()
    mine.name = name
    with pytest.raises(RegistrationError, match="the name is taken"):
        register(mine)

"""The table of file formats: what a backend may name, found when it is asked for."""

from __future__ import annotations

import pytest

from detent.backends import BACKENDS
from detent.deploy import FILES, register, writer
from detent.errors import RegistrationError, UnknownNameError


@pytest.mark.parametrize("name", FILES)
def test_every_format_has_a_writer(name):
    assert callable(writer(name))


@pytest.mark.parametrize("backend", BACKENDS)
def test_every_backend_names_formats_that_are_known(backend):
    for name in BACKENDS[backend].files:
        assert callable(writer(name))


def test_an_unknown_format_answers_with_those_that_are_known():
    with pytest.raises(UnknownNameError, match="the file format 'onyx'") as caught:
        writer("onyx")
    assert "onnx" in caught.value.found
    assert "vitis_quant_info" in caught.value.found


def test_a_format_of_ones_own(monkeypatch):
    def write(_):
        return {"mine.txt": b""}

    monkeypatch.setitem(FILES, "mine", write)  # taken out again after the test
    del FILES["mine"]
    register("mine", write)
    assert writer("mine") is write
    with pytest.raises(RegistrationError, match="'mine'"):
        register("mine", write)


@pytest.mark.parametrize("name", ["onnx", "vitis_quant_info"])
def test_a_name_that_is_taken_is_refused(name):
    with pytest.raises(RegistrationError, match="the name is taken"):
        register(name, lambda _: {})

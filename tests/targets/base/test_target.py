"""A target is registered once, with all it brings; what it brings is imported when it is asked for."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from types import SimpleNamespace

import pytest

from detent import targets
from detent.errors import RegistrationError, UnknownNameError
from detent.rewrites import Rewrite
from detent.targets import BACKENDS, TARGETS, Target
from detent.targets.arithmetics import ARITHMETICS
from detent.targets.base import registry
from detent.targets.engines import ENGINES
from detent.targets.formats import FORMATS
from detent.targets.litert.file import read_network
from detent.targets.ncnn.engine import Ncnn
from detent.targets.ncnn.file import FORMAT
from detent.targets.rewrites import REWRITES
from detent.twin import OnnxSpec

NOTHING = Rewrite("nothing", "to have one", ("ncnn<=1.0",), lambda _: None)


def chip(name: str = "chip", **changes: object) -> Target:
    """With a format, an engine, an arithmetic and a rewrite of its own."""
    backend = replace(BACKENDS["mnn"], name=name, rewrites=("nothing",), engine=f"{name}_engine")
    parts = {
        "rewrites": (NOTHING,),
        "formats": {},
        "engine": "detent.targets.ncnn.engine:Ncnn",
        "arithmetics": {f"{name}_arithmetic": "detent.twin:OnnxSpec"},
    }
    return Target(backend=backend, **(parts | changes))


@pytest.fixture
def offered(monkeypatch):
    """Targets by the name of an entry point; none until a test puts one in, whatever is installed here."""
    points: dict[str, object] = {}

    class Point:
        value = "chips_of_a_third_party:TARGET"
        dist = SimpleNamespace(name="third-party")

        def __init__(self, name):
            self.name = name

        def load(self):
            if isinstance(points[self.name], Exception):
                raise points[self.name]
            return points[self.name]

    def entry_points(*, group):
        assert group == "detent.targets"
        return [Point(name) for name in points]

    monkeypatch.setattr(registry, "entry_points", entry_points)
    monkeypatch.setattr(TARGETS, "refused", {})
    return points


def test_a_target_reads_files_of_its_own():
    assert TARGETS.reader(".tflite") is read_network
    assert TARGETS.reader(".onnx") is None


def test_every_target_stands_under_its_own_name_in_the_order_of_backends():
    assert list(TARGETS) == list(BACKENDS)
    assert all(target.name == name and BACKENDS[name] is target.backend for name, target in TARGETS.items())


def test_all_that_a_backend_names_is_known():
    for backend in BACKENDS.values():
        assert set(backend.files) <= set(FORMATS)
        assert set(backend.rewrites) <= set(REWRITES)
        assert backend.arithmetic in list(ARITHMETICS)
        assert backend.engine is None or backend.engine in list(ENGINES)


def test_every_place_has_what_it_is_said_to_have():
    assert {name: each.name for name, each in FORMATS.items()} == {name: name for name in FORMATS}
    assert {name: each.name for name, each in ENGINES.items()} == {name: name for name in ENGINES}
    assert all(ARITHMETICS.values())


def test_importing_targets_imports_nothing_that_they_bring():
    code = """
import re, sys
import detent.targets
modules = "engine|arithmetic|file|writer|program|encodings|ir_file|qlinear|quant_info"
brought = rf"detent[.]targets[.](?!base[.])\\w+[.]({modules})"
print([name for name in sys.modules if re.match(brought, name)])
"""
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300, check=True)
    assert run.stdout == "[]\n"


def test_one_call_registers_all_of_it():
    targets.register(chip())
    assert BACKENDS["chip"].engine == "chip_engine"
    assert ENGINES["chip_engine"] is Ncnn
    assert ARITHMETICS["chip_arithmetic"] is OnnxSpec
    assert REWRITES["nothing"] is NOTHING


def test_a_backend_alone_brings_nothing():
    targets.register(replace(BACKENDS["mnn"], name="alone"))
    assert "alone" in BACKENDS
    assert "alone" not in TARGETS


@pytest.mark.parametrize("table", [BACKENDS, ENGINES, ARITHMETICS], ids=lambda table: table.kind)
def test_an_installed_target_is_found_by_the_name_of_any_part(offered, table):
    name = f"installed_{table.kind}"
    offered[name] = chip(name)
    part = name if table is BACKENDS else f"{name}_{table.kind}"
    assert part not in list(table)
    assert table[part] is not None
    assert name in TARGETS


def test_an_unknown_name_is_still_unknown(offered):
    offered["other_chip"] = chip("other_chip")
    with pytest.raises(UnknownNameError, match="did you mean 'ncnn'"):
        ENGINES["ncnm"]


def test_an_entry_point_has_the_name_of_its_target(offered):
    offered["one"] = chip("another")
    with pytest.raises(RegistrationError, match="it calls itself 'another'"):
        BACKENDS["one"]


def test_an_entry_point_that_is_no_target_is_refused(offered):
    offered["one"] = 7
    with pytest.raises(RegistrationError, match="it is a int"):
        BACKENDS["one"]


def test_an_entry_point_that_cannot_be_imported_keeps_no_other_away(offered, refuses):
    offered["broken_chip"] = RuntimeError("boom")
    offered["other_chip"] = chip("other_chip")
    assert BACKENDS["other_chip"].name == "other_chip"
    with refuses(
        RegistrationError,
        asked="target 'broken_chip', an entry point of third-party",
        found="chips_of_a_third_party:TARGET cannot be imported: RuntimeError: boom",
        to_do="repair or uninstall third-party",
    ):
        BACKENDS["broken_chip"]


def test_a_format_that_another_has_is_refused():
    with pytest.raises(RegistrationError, match="register format 'ncnn'"):
        targets.register(chip("taker", formats={"ncnn": "detent.targets.acl:FORMAT"}))
    assert FORMATS["ncnn"] is FORMAT
    assert "taker" not in TARGETS
    assert "taker" not in BACKENDS


def test_rewrites_are_those_that_the_backend_names():
    with pytest.raises(RegistrationError, match="its backend names nothing"):
        chip(rewrites=())


def test_an_engine_has_the_name_that_the_backend_gives_it():
    with pytest.raises(RegistrationError, match="its backend names none"):
        Target(backend=BACKENDS["tensorrt"], engine="detent.targets.ncnn.engine:Ncnn")

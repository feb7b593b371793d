"""Rewrites as values: what a backend names, why, and until which release; docs/deploying.md says the same."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from detent.ir import Network, Op, Operand, Output, Port
from detent.rewrites import NetworkEditor, rewrite
from detent.targets import BACKENDS
from detent.targets.rewrites import REWRITES

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = {
    "litert": "ai-edge-litert",
    "ncnn": "ncnn",
    "onnxruntime": "onnxruntime",
    "openvino": "openvino",
    "qnn": "onnxruntime-qnn",
    "snpe": "onnxruntime-qnn",
    "tflite_micro": "ai-edge-litert",
}
"""What was measured, by the backends that have rewrites."""


def users(name: str) -> list[str]:
    return [backend.name for backend in BACKENDS.values() if name in backend.rewrites]


def table() -> list[str]:
    return [
        f"| `{each.name}` | {', '.join(users(each.name))} | {each.why} | {', '.join(each.needed_for)} |"
        for _, each in sorted(REWRITES.items())
    ]


def test_the_page_has_the_table():
    lines = (ROOT / "docs" / "deploying.md").read_text().splitlines()
    start = lines.index("| rewrite | for | why | measured with |") + 2
    written = lines[start : start + len(REWRITES) + 1]
    assert "\n".join(written) == "\n".join([*table(), ""])


def test_a_rewrite_is_named_as_in_the_table():
    assert all(name == each.name for name, each in REWRITES.items())


@pytest.mark.parametrize("name", REWRITES)
def test_the_reason_is_one_sentence(name):
    why = REWRITES[name].why
    assert why[0].isupper()
    assert not why.endswith(".")
    assert ". " not in why
    assert "|" not in why


@pytest.mark.parametrize("name", REWRITES)
def test_it_is_needed_by_the_backends_that_name_it(name):
    packages = {requirement.partition("<=")[0] for requirement in REWRITES[name].needed_for}
    assert packages == {PACKAGES[backend] for backend in users(name)}


@pytest.mark.parametrize("backend", [backend for backend in BACKENDS if BACKENDS[backend].rewrites])
def test_a_backend_names_rewrites_that_there_are(backend):
    assert set(BACKENDS[backend].rewrites) <= set(REWRITES)


@pytest.mark.parametrize("name", REWRITES)
def test_a_newer_release_is_measured_again(name):
    """A workaround expires: who raises a version in constraints.txt runs the engine without the rewrite, and drops the
    rewrite or writes the new version down."""
    pinned = dict(line.split("==") for line in (ROOT / "constraints.txt").read_text().splitlines() if "==" in line)
    for requirement in REWRITES[name].needed_for:
        package, version = requirement.split("<=")
        assert as_numbers(pinned.get(package, version)) <= as_numbers(version)


def as_numbers(version: str) -> list[int]:
    return [int(part) for part in re.findall(r"\d+", version)]


def test_a_function_becomes_a_rewrite_of_its_name():
    @rewrite(why="It is an example", needed_for=("nothing<=1.0",))
    def relu_as_max(editor: NetworkEditor) -> None:
        for op in editor.ops("Relu"):
            editor.write("Max", [op.inputs[0], editor.reals(np.zeros(1, np.float32), "y")], "y")
            editor.replace(op)

    relu = Op("Relu", "relu", (Operand("x"),), ("y",))
    given, ends = {"x": Port("float32", (1,))}, (Output("y", Operand("y")),)
    editor = NetworkEditor(Network(given, ends, (relu,), {}, frozenset(), {}, 17))
    relu_as_max.apply(editor)
    assert relu_as_max.name == "relu_as_max"
    assert [op.type for op in editor.finished().ops] == ["Max"]

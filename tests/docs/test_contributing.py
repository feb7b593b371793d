"""CONTRIBUTING's lists of what an addition touches, each walked by something that was added by it.

`examples/` has an addition of each kind from outside the tree, which tests/test_examples.py runs.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from detent.algorithms import ALGORITHMS
from detent.frontends.onnx.table import CONVERTERS
from detent.frontends.torch.lowerings import LOWERINGS
from detent.graph import KINDS, TORCH_OPS
from detent.ir import OPS
from detent.ir.reference import REFERENCE
from detent.ir.roundoff import ROUNDOFF
from detent.recipes import BUILTIN
from detent.targets import BACKENDS, TARGETS

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "CONTRIBUTING.md").read_text()
PATH = re.compile(r"`((?:src/detent|tests|docs|tools|examples)[\w./<>-]*)`")

# What stands for <name>, in each section: additions that went by the list.
EXAMPLES = {"Adding an operator": "Shrink", "Adding an algorithm": "hqq", "Adding a target": "tvm"}


def section(title: str) -> str:
    _, found, rest = TEXT.partition(f"## {title}\n")
    assert found
    return rest.partition("\n## ")[0]


def paths(title: str) -> list[str]:
    named = PATH.findall(section(title)) + re.findall(r"\[(examples/\w+)\]", section(title))
    return [each.replace("<name>", EXAMPLES[title]) for each in named]


@pytest.mark.parametrize("title", EXAMPLES)
def test_the_files_that_it_names_are_there(title):
    assert len(paths(title)) >= 3
    missing = [each for each in paths(title) if not (ROOT / each).exists()]
    assert missing in ([], ["src/detent/observers/hqq.py", "src/detent/quantizers/hqq.py"])


def test_an_operator_is_in_each_place_of_the_list():
    ops = [op for op in TORCH_OPS if op.kind == "shrink"]
    assert {op.name for op in ops} == {"hardshrink", "softshrink"} <= LOWERINGS.keys()
    assert "shrink" in KINDS
    assert all("Shrink" in table for table in (OPS, REFERENCE, CONVERTERS, ROUNDOFF))
    assert "| Shrink | hardshrink, softshrink |" in (ROOT / "docs/operators.md").read_text()


def test_an_algorithm_is_in_each_place_of_the_list():
    assert ALGORITHMS["hqq"].run.__module__ == "detent.algorithms.hqq"
    assert any(request.name == "hqq" for one in BUILTIN.values() for request in one.recipe.algorithms)
    assert "hqq" in (ROOT / "docs/algorithms.md").read_text()


def test_a_target_is_in_each_place_of_the_list():
    assert TARGETS["tvm"].backend is BACKENDS["tvm"]
    assert "| `tvm` |" in (ROOT / "docs/backends.md").read_text()
    named = [path for path in (ROOT / "src/detent").rglob("*.py") if "detent.targets.tvm" in path.read_text()]
    assert {path.relative_to(ROOT / "src/detent").parts[0] for path in named} == {"targets"}

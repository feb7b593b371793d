"""The examples and the README, run as a reader would run them."""

from __future__ import annotations

import doctest
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

from detent.algorithms import ALGORITHMS, all_layers

ROOT = Path(__file__).resolve().parents[1]


@pytest.mark.parametrize(
    ("example", "printed"),
    [
        ("own_observer.py", "scale 0.008661\n"),
        ("own_quantizer.py", "[0.25, -0.5, 1.75, 0.0]\n"),
        (
            "own_algorithm.py",
            "shrink_scales: 1 kept, 0 rolled back (error of weights on held-back data)\n"
            "place  before  after\n"
            "0      0.15    0.0563  kept\n",
        ),
        ("own_backend.py", "7 tensors quantized, output [[-1.4375, 3.59375]]\n"),
    ],
)
def test_example_prints(example, printed, capsys):
    # 1.1 / 127 = 0.008661: the third batch, 50 times as wide, changes nothing.
    runpy.run_path(str(ROOT / "examples" / example), run_name="__main__")
    assert capsys.readouterr().out == printed


def test_the_algorithm_leaves_the_error_that_it_reports(capsys, monkeypatch):
    monkeypatch.delitem(ALGORITHMS._table, "shrink_scales", raising=False)  # another run of it made another function
    prepared = runpy.run_path(str(ROOT / "examples" / "own_algorithm.py"), run_name="__main__")["prepared"]
    capsys.readouterr()
    (layer,) = all_layers(prepared)
    error = float((layer.quantized_weight() - layer.weight.detach()).square().sum())
    assert error == pytest.approx(prepared.algorithm_notes[0].changes[0].after)


def test_every_example_is_tested():
    mark = test_example_prints.pytestmark[0]
    assert {path.name for path in (ROOT / "examples").glob("*.py")} == {example for example, _ in mark.args[1]}


def test_readme_examples_give_what_they_show():
    result = doctest.testfile(str(ROOT / "README.md"), module_relative=False, optionflags=doctest.ELLIPSIS)
    assert result.attempted > 5
    assert result.failed == 0


def test_every_link_in_the_documents_leads_somewhere():
    checked = subprocess.run(
        [sys.executable, ROOT / "tools" / "check_links.py"], capture_output=True, text=True, timeout=300, check=False
    )
    assert checked.returncode == 0, checked.stdout + checked.stderr

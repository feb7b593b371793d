"""The notebooks of docs/tutorials: all cells run, and their asserts hold."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tools.run_tutorials import FOLDER, run, run_cell

from detent.targets.engines import ENGINES

NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))
ENGINE = {"03_onnx_to_openvino": "openvino"}
LONG = ("02_train_with_quantization", "03_onnx_to_openvino", "04_transformer", "07_why_does_my_model_differ")


def cells(path: Path) -> list[dict[str, Any]]:
    return [cell for cell in json.loads(path.read_text(encoding="utf-8"))["cells"] if cell["cell_type"] == "code"]


@pytest.mark.parametrize(
    "path",
    [pytest.param(path, marks=[pytest.mark.full] if path.stem in LONG else [], id=path.stem) for path in NOTEBOOKS],
)
def test_every_cell_runs(path: Path) -> None:
    engine = ENGINE.get(path.stem)
    if engine is not None and ENGINES[engine].version() is None:
        pytest.skip(f"{engine} is not installed")
    run(path)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_holds_its_outputs_and_checks_what_it_says(path: Path) -> None:
    code = cells(path)
    assert [cell["execution_count"] for cell in code] == list(range(1, len(code) + 1)), "run tools/run_tutorials.py"
    assert any(cell["outputs"] for cell in code)
    assert any("assert" in line for cell in code for line in cell["source"])


def test_the_list_has_every_notebook() -> None:
    page = (FOLDER / "README.md").read_text(encoding="utf-8")
    assert all(f"({path.name})" in page for path in NOTEBOOKS)


def test_a_cell_shows_what_it_prints_and_its_last_value() -> None:
    names: dict[str, Any] = {}
    assert run_cell("x = 2\nprint('two')\nx + 1", names, "here", 1) == [
        {"name": "stdout", "output_type": "stream", "text": ["two\n"]},
        {"data": {"text/plain": ["3"]}, "execution_count": 1, "metadata": {}, "output_type": "execute_result"},
    ]
    assert names["x"] == 2


def test_an_error_in_a_cell_is_raised() -> None:
    with pytest.raises(ZeroDivisionError):
        run_cell("1 / 0", {}, "here", 1)

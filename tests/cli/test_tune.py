"""`detent tune`, as a user types it."""

from __future__ import annotations

import json
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from detent.cli import _app
from detent.recipes import Recipe
from tests.tuning.test_tune import Unequal, images, labeled


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("tune")
    network = Unequal().eval()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the exporter's own
        torch.onnx.export(network, (images(0, 1)[0],), made / "net.onnx", dynamo=False, input_names=["x"])
    batches = labeled(network, images(0, 2))
    arrays = {"x": np.concatenate([x for x, _ in batches]), "labels": np.concatenate([labels for _, labels in batches])}
    np.savez(made / "data.npz", **arrays)
    (made / "metrics.py").write_text("def half(network):\n    return 0.5\n\ndef broken(network):\n    return 1 / 0\n")
    return made


def run(folder: Path, *words: str) -> tuple[int, str, str]:
    asked = ["tune", str(folder / "net.onnx"), "--data", str(folder / "data.npz"), "--batch-size", "16"]
    found = CliRunner().invoke(_app, [*asked, *words])
    if found.exception is not None and not isinstance(found.exception, SystemExit):
        return 2, "", str(found.exception)
    return found.exit_code, found.stdout, found.stderr


def test_a_target_that_is_met(folder: Path, tmp_path: Path) -> None:
    out, recipe = tmp_path / "out", tmp_path / "found.yaml"
    words = ["--backend", "onnxruntime", "--drop", "99", "-o", str(out), "--save-recipe", str(recipe), "--json"]
    code, said, beside = run(folder, *words)
    assert code == 0, beside
    told = json.loads(said)
    assert told["met"] is True
    assert told["float"] == 100.0
    assert Recipe.load(recipe).to_dict() == told["recipe"]
    assert beside.startswith("ptq: "), "a line for each trial"
    assert (out / "manifest.json").is_file()


@pytest.mark.parametrize(("name", "found"), [("found.txt", "the suffix '.txt' is not one of"), (".", "is a directory")])
def test_a_recipe_that_cannot_be_saved_is_said_before_tuning(
    folder: Path, tmp_path: Path, name: str, found: str
) -> None:
    words = ["--backend", "onnxruntime", "--drop", "99", "-o", str(tmp_path / "out"), "--save-recipe", name]
    code, _, beside = run(folder, *words)
    assert code == 2
    assert found in beside
    assert not (tmp_path / "out").exists()


def test_a_metric_of_the_users_own(folder: Path, tmp_path: Path) -> None:
    words = ["--backend", "onnxruntime", "--drop", "0", "-o", str(tmp_path / "out")]
    code, said, _ = run(folder, *words, "--metric", f"{folder}/metrics.py:half")
    assert code == 0
    assert said.startswith("float 0.50, target 0.50 or more, measured on onnxruntime\n")
    code, _, beside = run(folder, *words, "--metric", f"{folder}/metrics.py:broken")
    assert code == 2
    assert "ZeroDivisionError: division by zero (line 5 of " in beside
    code, _, beside = run(folder, *words, "--metric", "speed")
    assert code == 2
    assert "it names no function" in beside

"""`detent train` and `detent deploy`: what they print and how they end."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from detent.cli import deploy, train
from detent.cli.train import show_outcome
from detent.errors import RecipeError
from detent.training.session import Outcome

CONFIG = """
name: small
model: {name: resnet20, options: {width: 0.25, depth: 1}}
data: {name: made_up, options: {count: 16, size: 16}, batch_size: 8, calibration_batches: 1}
backend: onnxruntime
recipe: lsq
train: {loop: lsq, epochs: 1}
"""


def app() -> typer.Typer:
    made = typer.Typer()
    made.command()(train)
    made.command()(deploy)
    return made


def test_train_resume_and_deploy(tmp_path: Path) -> None:
    config, out = tmp_path / "c.yaml", tmp_path / "run"
    config.write_text(CONFIG)
    runner = CliRunner()
    first = runner.invoke(app(), ["train", str(config), "-o", str(out), "--json"])
    assert first.exit_code == 0, first.output
    told = json.loads(first.stdout)
    assert set(told["metrics"]) >= {"quantized.top1", "float.top1"}
    again = runner.invoke(app(), ["train", str(config), "-o", str(out), "--resume", "--epochs", "2"])
    assert again.exit_code == 0, again.output
    assert "quantized.top1: " in again.stdout
    made = runner.invoke(
        app(),
        ["deploy", "--checkpoint", str(out / "last.safetensors"), "--config", str(config), "-o", str(tmp_path / "d")],
    )
    assert made.exit_code == 0, made.output
    assert (tmp_path / "d" / "model.onnx").is_file()


def test_shares_are_per_cent_and_other_numbers_are_not(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    values = {"quantized.top1": 0.5, "quantized.psnr": 31.25, "quantized.loss": 0.125, "agreement": 0.75}
    show_outcome(Outcome(values, tmp_path), json=False)
    assert capsys.readouterr().out.splitlines() == [
        "quantized.top1: 50.00 %",
        "quantized.psnr: 31.2500",
        "quantized.loss: 0.1250",
        "agreement: 75.00 %",
    ]


def test_a_mistake_is_ours_to_print(tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text(CONFIG + "trian: {}\n")
    result = CliRunner().invoke(app(), ["train", str(tmp_path / "c.yaml")])
    assert isinstance(result.exception, RecipeError)
    assert result.exception.to_do == "did you mean 'train'?"


@pytest.mark.parametrize("command", ["train", "deploy"])
def test_help_shows_an_example(command: str) -> None:
    assert f"Example: detent {command}" in CliRunner().invoke(app(), [command, "--help"]).stdout

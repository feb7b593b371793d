"""A file that is not there is said at once: before torch is loaded."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from detent.cli.paths import require_data, require_path, require_recipe

PROGRAM = """
import sys
from detent.cli import main
try:
    main()
except SystemExit as end:
    print(end.code, "torch" in sys.modules)
"""
OPTIONS = ("--backend", "openvino", "-o", "out")


@pytest.mark.parametrize(
    ("words", "missing"),
    [
        (("plan", "absent.onnx", "--backend", "openvino"), "absent.onnx"),
        (("plan", "net.onnx", "--backend", "openvino", "--recipe", "absent.yaml"), "absent.yaml"),
        (("quantize", "absent.onnx", "--data", "calib", *OPTIONS), "absent.onnx"),
        (("quantize", "net.onnx", "--data", "absent", *OPTIONS), "absent"),
        (("quantize", "net.onnx", "--data", "absent.py:batches", *OPTIONS), "absent.py"),
        (("train", "absent.yaml"), "absent.yaml"),
        (("train", "c.yaml", "--data", "absent"), "absent"),
        (("train", "c.yaml", "--pretrained", "absent.pt"), "absent.pt"),
        (("deploy", "--checkpoint", "absent.safetensors", "--config", "c.yaml", "-o", "out"), "absent.safetensors"),
        (("deploy", "--checkpoint", "net.onnx", "--config", "absent.yaml", "-o", "out"), "absent.yaml"),
        (("verify", "absent", "--data", "calib"), "absent"),
        (("verify", "calib", "--data", "absent.npy"), "absent.npy"),
        (("tune", "net.onnx", "--data", "absent", "--drop", "1", *OPTIONS), "absent"),
        (("tune", "net.onnx", "--data", "calib", "--validation", "absent.npz", "--drop", "1", *OPTIONS), "absent.npz"),
        (("tune", "net.onnx", "--data", "calib", "--metric", "absent.py:f", "--drop", "1", *OPTIONS), "absent.py"),
        (("report", "calib", "absent"), "absent"),
        (("report", "calib", "--data", "absent.npz"), "absent.npz"),
        (("report", "calib", "--data", "calib", "--float", "absent.onnx"), "absent.onnx"),
        (("report", "calib", "--log", "absent.csv"), "absent.csv"),
        (("retarget", "absent", "--backend", "litert"), "absent"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_a_missing_file_is_one_line_before_torch_is_loaded(words: tuple[str, ...], missing: str, tmp_path: Path):
    for name in ("net.onnx", "c.yaml"):
        (tmp_path / name).touch()
    (tmp_path / "calib").mkdir()
    command = [sys.executable, "-c", PROGRAM, *words]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=True, timeout=300)
    assert done.stdout == "2 False\n"
    assert done.stderr == f"detent: {missing}: no such file or folder\n"


def test_the_nearest_name_is_suggested(tmp_path: Path) -> None:
    (tmp_path / "model.onnx").touch()
    with pytest.raises(FileNotFoundError) as raised:
        require_path(tmp_path / "modle.onnx")
    assert raised.value.strerror == f"no such file or folder; did you mean {str(tmp_path / 'model.onnx')!r}?"


def test_what_is_there_or_is_no_file_passes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mine.py").touch()
    Path("a:b").touch()
    assert require_path(None) is None
    assert require_path(tmp_path) == tmp_path
    assert [require_data(data) for data in ("mine.py:batches", "package.module:batches", "a:b", ".")]
    assert [require_recipe(recipe) for recipe in ("ptq", "absent")]
    with pytest.raises(FileNotFoundError):
        require_path(Path("\0"))

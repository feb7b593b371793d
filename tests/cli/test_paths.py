"""A file that is not there, or is another, and a name that is not known are said at once: before torch is loaded."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from detent.cli.names import RECIPES, require_backend, require_recipe
from detent.cli.onnx_header import looks_like_onnx
from detent.cli.paths import require_data, require_path
from detent.recipes import BUILTIN
from detent.targets import BACKENDS, PLACES

PROGRAM = """
import sys
from detent.cli import main
try:
    main()
except SystemExit as end:
    print(end.code, "torch" in sys.modules)
"""
OPTIONS = ("--backend", "openvino", "-o", "out")
EMPTY_MODEL = b"\x08\x08\x3a\x00"  # ir_version 8, a graph of no bytes


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
        (("verify", "out", "--data", "absent.npy"), "absent.npy"),
        (("tune", "net.onnx", "--data", "absent", "--drop", "1", *OPTIONS), "absent"),
        (("tune", "net.onnx", "--data", "calib", "--validation", "absent.npz", "--drop", "1", *OPTIONS), "absent.npz"),
        (("tune", "net.onnx", "--data", "calib", "--metric", "absent.py:f", "--drop", "1", *OPTIONS), "absent.py"),
        (("report", "out", "absent"), "absent"),
        (("report", "out", "--data", "absent.npz"), "absent.npz"),
        (("report", "out", "--data", "calib", "--float", "absent.onnx"), "absent.onnx"),
        (("report", "out", "--log", "absent.csv"), "absent.csv"),
        (("retarget", "absent", "--backend", "litert"), "absent"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_a_missing_file_is_one_line_before_torch_is_loaded(words: tuple[str, ...], missing: str, tmp_path: Path):
    assert refused(tmp_path, words) == f"detent: {missing}: no such file or folder\n"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("plan", "c.yaml", "--backend", "openvino"), "load 'c.yaml': it is not an ONNX file, or it is damaged"),
        (("plan", "net.onnx", "--backend", "openvin"), "did you mean 'openvino'?"),
        (("plan", "net.onnx", "--backend", "openvino", "--recipe", "ptqq"), "did you mean 'ptq'?"),
        (("plan", "net.onnx", "--backend", "openvino", "--recipe", "zzz"), "or the path of a .yaml"),
        (("plan", "net.onnx", "--backend", "openvino", "--cpu", "vnn"), "did you mean 'vnni'?"),
        (("plan", "net.onnx", "--backend", "openvino", "--size", "a=b"), "'--size': a=b: a size is a whole number"),
        (("plan", "net.onnx", "--backend", "openvino", "--set", "a=b"), "'--set': a=b: give numbers"),
        (("quantize", "net.onnx", "--data", "calib", "--steps", "0", *OPTIONS), "'--steps'"),
        (("quantize", "net.onnx", "--data", "calib", "--crop", "8", "--layout", "chw", *OPTIONS), "--layout chw"),
        (("quantize", "net.onnx", "--data", "calib", "--crop", "8", "--std", "a", *OPTIONS), "not a list of numbers"),
        (("verify", "calib", "--data", "calib"), "load calib: there is no manifest.json in it"),
        (("verify", "out", "--data", "calib", "--cpu", "vnn"), "did you mean 'vnni'?"),
        (("report", "out", "calib"), "load calib: there is no manifest.json in it"),
        (("retarget", "out", "--backend", "lite"), "did you mean 'litert'?"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_a_mistake_is_said_before_torch_is_loaded(words: tuple[str, ...], said: str, tmp_path: Path) -> None:
    assert said in refused(tmp_path, words)


def refused(folder: Path, words: tuple[str, ...]) -> str:
    """What the program says on stderr before it ends, with 2 and without torch, in a folder of empty files."""
    (folder / "net.onnx").write_bytes(EMPTY_MODEL)
    (folder / "c.yaml").touch()
    for name in ("calib", "out"):
        (folder / name).mkdir()
    (folder / "out" / "manifest.json").touch()
    command = [sys.executable, "-c", PROGRAM, *words]
    done = subprocess.run(command, capture_output=True, text=True, cwd=folder, check=True, timeout=300)
    assert done.stdout == "2 False\n"
    return done.stderr


def test_the_names_that_are_known_without_torch_are_all_there_are() -> None:
    assert tuple(BUILTIN) == RECIPES
    assert list(BACKENDS)[: len(PLACES)] == list(PLACES)  # behind them may be what other tests registered


def test_a_backend_that_was_registered_is_left_to_the_tables() -> None:
    assert require_backend("registered by who called main()")


@pytest.mark.parametrize(
    ("content", "is_one"),
    [
        (EMPTY_MODEL, True),
        (b"\x3a\x02ab\x08\x07", True),  # fields in any order
        (b"\x08\x08\x3a\x00\xa1\x06" + bytes(8) + b"\xa5\x06" + bytes(4), True),  # fields of 8 and of 4 bytes
        (b"\x08\x08", False),  # no graph
        (b"\x38\x08", False),  # field 7 is a number
        (b"\x08\x08\x3a\x05ab", False),  # cut
        (b"\x08\x80", False),
        (b"\x08" + b"\xff" * 10, False),
        (b"\x3a\x00\x00\x00", False),  # there is no field 0
        (b"\x3a\x00\x0f", False),  # nor a wire type 7
        (b"", False),
        (b"version https://git-lfs.github.com/spec/v1\n", False),
        (b"<!DOCTYPE html>", False),
        (b'{"a": 1}', False),
        (b"PK\x03\x04", False),
    ],
)
def test_an_onnx_file_is_told_by_its_fields(content: bytes, is_one: bool, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(content)
    assert looks_like_onnx(tmp_path / "file") is is_one


def test_the_nearest_name_is_suggested(tmp_path: Path) -> None:
    (tmp_path / "model.onnx").touch()
    with pytest.raises(FileNotFoundError) as raised:
        require_path(tmp_path / "modle.onnx")
    assert raised.value.strerror == f"no such file or folder; did you mean {str(tmp_path / 'model.onnx')!r}?"


def test_a_link_that_leads_nowhere_is_no_suggestion(tmp_path: Path) -> None:
    (tmp_path / "model.onnx").symlink_to(tmp_path / "model.onnx")
    with pytest.raises(FileNotFoundError) as raised:
        require_path(tmp_path / "model.onnx")
    assert raised.value.strerror == "no such file or folder"


def test_what_is_there_or_is_no_file_passes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mine.py").touch()
    Path("a:b").touch()
    assert require_path(None) is None
    assert require_path(tmp_path) == tmp_path
    assert [require_data(data) for data in ("mine.py:batches", "package.module:batches", "a:b", ".")]
    assert require_recipe("ptq") == "ptq"
    with pytest.raises(FileNotFoundError):
        require_path(Path("\0"))

"""`detent report`."""

from __future__ import annotations

import json
import sys

import numpy as np
import pytest

from detent.cli import main
from tests.verification.mutants import batches, made


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    where = tmp_path_factory.mktemp("reports")
    made("onnxruntime", "plain", where / "out")
    np.save(where / "data.npy", batches()[0].numpy())
    return where


@pytest.fixture
def run(folder, monkeypatch, capsys):
    """The command in that folder: its exit code, and what it printed and complained of."""

    def command(*arguments: str) -> tuple[int, list[str], str]:
        monkeypatch.chdir(folder)
        monkeypatch.setattr(sys, "argv", ["detent", "report", *arguments])
        with pytest.raises(SystemExit) as end:
            main()
        out, err = capsys.readouterr()
        return (
            int(end.value.code or 0),
            out.splitlines(),
            " ".join(err.replace("\N{BOX DRAWINGS LIGHT VERTICAL}", " ").split()),
        )

    return command


def test_a_page_and_the_files_for_other_viewers(run, folder):
    asked = ("out", "--data", "data.npy", "--no-latency", "--card", "--annotate", "--model-explorer", "nodes.json")
    code, printed, complaint = run(*asked)
    assert (code, complaint) == (0, "")
    figures = [f"nodes.{name}.json" for name in ("bits", "sqnr", "alone", "lsb")]
    assert printed == ["out/report.html", "out/README.md", "out/model.annotated.onnx", *figures]
    assert (folder / "out/report.html").read_text("utf-8").startswith("<!doctype html>")
    assert json.loads((folder / "nodes.bits.json").read_text())["name"] == "Bits"


def test_several_folders_are_compared(run, folder):
    assert run("out", "out", "-o", "both.html")[:2] == (0, ["both.html"])
    assert "Side by side" in (folder / "both.html").read_text("utf-8")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("out", "out", "--card"), "--card: only for one folder: give one"),
        (("out", "--float", "out/model.onnx"), "--float: only used with --data: give it too"),
        ((".",), "there is no manifest.json in it"),
        (("nowhere",), "nowhere: no such file or folder"),
        (("out", "-o", "nowhere/page.html"), "No such file or directory"),
        (("out", "-o", "."), "'.' is a directory"),
        (("out", "--model-explorer", "."), "'.' is a directory"),
        (("out", "--log", "nowhere"), "nowhere: no such file or folder"),
    ],
)
def test_a_mistake_is_said_in_a_line(run, arguments, said):
    code, _, complaint = run(*arguments)
    assert code == 2
    assert said in complaint

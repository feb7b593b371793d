"""The program as a person or a script runs it: its output, its exit code."""

from __future__ import annotations

import json
import subprocess
import sys

import onnxruntime
import pytest
import torch

import detent
from detent.algorithms import ALGORITHMS
from detent.observers import OBSERVERS
from detent.quantizers import QUANTIZERS
from detent.recipes import BUILTIN
from detent.targets import BACKENDS


def test_help_lists_the_commands(command):
    answer = command("--help")
    assert answer.returncode == 0
    assert "demo" in answer.stdout
    assert "algorithms" in answer.stdout


COMMANDS = [
    "demo",
    "plan",
    "quantize",
    "train",
    "deploy",
    "verify",
    "retarget",
    "algorithms",
    "backends",
    "recipes",
    "completion",
]


@pytest.mark.parametrize("name", COMMANDS)
def test_each_command_shows_an_example_of_itself(command, name):
    answer = command(name, "-h")
    assert answer.returncode == 0
    assert f"Example: detent {name}" in answer.stdout


def test_the_short_and_the_long_help_are_one(command):
    assert command("-h").stdout == command("--help").stdout
    assert command("plan", "-h").stdout == command("plan", "--help").stdout


@pytest.mark.parametrize("module", ["detent", "detent.cli"])
def test_the_package_is_a_program(module):
    words = [sys.executable, "-m", module, "--version"]
    assert subprocess.run(words, capture_output=True, text=True, timeout=300).stdout == f"detent {detent.__version__}\n"


def test_recipes_as_json_are_those_that_come_with_detent(command):
    rows = json.loads(command("recipes", "--json").stdout)
    assert list(rows) == list(BUILTIN)
    assert rows["lsq"] == {
        "about": "train step sizes (Esser et al., ICLR 2020)",
        "name": "lsq",
        "weight": {"quantizer": "lsq"},
        "activation": {"quantizer": "lsq"},
        "calibration": {"choose_ranges": True},
    }


def test_recipes_prints_a_table_for_a_person(command):
    words = " ".join(command("recipes").stdout.replace("│", " ").split())
    assert "lsq train step sizes (Esser et al., ICLR 2020)" in words


def test_algorithms_as_json_has_every_registered_name(command):
    tables = json.loads(command("algorithms", "--json").stdout)
    assert set(tables["observers"]) == set(OBSERVERS)
    assert set(tables["quantizers"]) == set(QUANTIZERS)
    assert tables["quantizers"]["tqt"]["schemes"] == "int, symmetric, power-of-two, per-tensor/per-channel"
    assert tables["quantizers"]["qdrop"]["options"] == {"probability": 0.5}
    assert tables["observers"]["percentile"]["options"] == {"percentile": 99.99, "bins": None}
    assert list(tables["algorithms"]) == list(ALGORITHMS)
    assert tables["algorithms"]["bias_correction"] == {
        "what": "mean errors taken out of biases (Nagel et al., 2019)",
        "runs": "after calibration",
        "options": {"method": "empirical"},
    }


def test_backends_as_json_has_every_registered_name(command):
    rows = json.loads(command("backends", "--json").stdout)
    assert set(rows) == set(BACKENDS)
    assert rows["vitis"]["bias"] == "own"
    assert "conv" in rows["onnxruntime"]["quantizes"]
    assert (rows["litert"]["weight bits"], rows["litert"]["activation bits"]) == ([8, 4], [8, 16])
    engines = {name: (rows[name]["engine"], rows[name]["installed"]) for name in ("onnxruntime", "torch_x86", "vitis")}
    assert engines == {
        "onnxruntime": ("onnxruntime", onnxruntime.__version__),
        "torch_x86": ("torch", torch.__version__),
        "vitis": (None, None),
    }


def test_backends_prints_a_table_for_a_person(command):
    words = " ".join(command("backends").stdout.replace("│", " ").split())
    assert "onnxruntime" in words
    assert "the twin only" in words


def test_algorithms_prints_square_brackets_as_they_are(command):
    assert "[low, high]" in " ".join(command("algorithms").stdout.replace("│", " ").split())


def test_a_wrong_option_is_one_message_and_exit_code_2(command):
    answer = command("demo", "--aut", "7")
    assert answer.returncode == 2
    assert "--aut" in answer.stderr
    assert "Traceback" not in answer.stderr


def test_a_refusal_of_the_library_is_one_line_and_exit_code_2(monkeypatch, capsys):
    import detent.cli
    from detent.errors import SchemeError

    def refuse() -> None:
        raise SchemeError("IntGrid(bits=0)", "this grid has 2 to 32 bits", "choose an integer in 2..32")

    monkeypatch.setattr(detent.cli, "_app", refuse)
    with pytest.raises(SystemExit) as stopped:
        detent.cli.main()
    assert stopped.value.code == 2
    assert capsys.readouterr().err == (
        "detent: IntGrid(bits=0): this grid has 2 to 32 bits; choose an integer in 2..32\n"
    )


def test_what_nobody_foresaw_does_not_end_like_a_verdict(monkeypatch, capsys):
    import detent.cli

    def fail() -> None:
        raise RuntimeError("a defect")

    monkeypatch.setattr(detent.cli, "_app", fail)
    with pytest.raises(SystemExit) as stopped:
        detent.cli.main()
    assert stopped.value.code == 3
    said = capsys.readouterr().err
    assert "RuntimeError: a defect" in said
    assert "please report" in said

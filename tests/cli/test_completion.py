"""`detent completion`: what the scripts complete, in the shells themselves."""

from __future__ import annotations

import shutil
import subprocess
import sys
from contextlib import redirect_stdout
from pathlib import Path

import pytest

import detent.cli
from detent.recipes import BUILTIN


@pytest.fixture(scope="module")
def scripts(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("scripts")
    for shell in ("bash", "zsh", "fish"):
        with (folder / shell).open("w") as file, redirect_stdout(file), pytest.MonkeyPatch.context() as patch:
            patch.setattr(sys, "argv", ["detent", "completion", shell])
            with pytest.raises(SystemExit, match="0"):
                detent.cli.main()
    return folder


def completed(shell: str, code: str) -> list[str]:
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    return subprocess.run([shell, "-c", code], capture_output=True, text=True, check=True, timeout=60).stdout.split(
        "\n"
    )[:-1]


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("detent ver", ["verify"]),
        ("detent re", ["report", "retarget", "recipes"]),
        ("detent --v", ["--version"]),
        ("detent quantize --b", ["--backend", "--batch-size"]),
        ("detent quantize net.onnx --backend openv", ["openvino", "openvino_llm"]),
        ("detent quantize net.onnx --recipe ", list(BUILTIN)),
        ("detent verify out --cpu a", ["avx2", "avx512", "avx_vnni", "amx", "arm64"]),
        ("detent verify out --no", ["--no-tensors", "--no-latency"]),
        ("detent completion ", ["bash", "zsh", "fish"]),
        ("detent quantize ne", []),  # a file: bash goes on with its own
        ("detent nonsense --", []),
    ],
)
def test_bash(line: str, words: list[str], scripts: Path) -> None:
    parts = line.split(" ")
    given = " ".join(f"'{part}'" for part in parts)
    code = f"source {scripts / 'bash'}; COMP_WORDS=({given}); COMP_CWORD={len(parts) - 1}; _detent; "
    assert completed("bash", code + 'for word in "${COMPREPLY[@]}"; do echo "$word"; done') == words


def test_bash_completes_files_where_nothing_fits(scripts: Path) -> None:
    assert completed("bash", f"source {scripts / 'bash'}; complete -p detent") == [
        "complete -o default -F _detent detent"
    ]


def test_zsh_reads_it_through_its_own_emulation_of_bash(scripts: Path) -> None:
    text = (scripts / "zsh").read_text()
    assert text.endswith((scripts / "bash").read_text())
    assert "bashcompinit && bashcompinit\n" in text
    assert completed("zsh", f"source {scripts / 'zsh'}; print $_comps[detent]")[-1].endswith("-F _detent")


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("detent re", {"recipes", "report", "retarget"}),
        ("detent plan net.onnx --backend openv", {"openvino"}),
        ("detent completion ", {"bash", "zsh", "fish"}),
        ("detent quantize --b", {"--backend", "--batch-size"}),
    ],
)
def test_fish(line: str, words: set[str], scripts: Path) -> None:
    found = completed("fish", f"source {scripts / 'fish'}; complete -C '{line}'")
    assert {text.split("\t")[0] for text in found} == words


def test_fish_has_a_line_for_each_option(scripts: Path) -> None:
    lines = (scripts / "fish").read_text().splitlines()
    inside = "complete -c detent -n '__fish_seen_subcommand_from retarget'"
    assert [line.removeprefix(inside).split(" -d ")[0] for line in lines if line.startswith(inside)][1:] == [
        " -l out -s o -r",
        " -l json",
        " -l help -s h",
    ]


def test_a_shell_that_is_not_known_is_refused() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "detent", "completion", "csh"], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 2
    assert "csh" in done.stderr

"""Another Python: what it imports, and the words for its end."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from detent.processes import how_it_ended, python_command

SOURCES = Path(__file__).resolve().parents[1] / "src" / "detent"


def test_it_imports_from_where_this_python_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "beside.py").write_text("value = 7")
    monkeypatch.syspath_prepend(tmp_path)
    done = subprocess.run(
        python_command("import beside; print(beside.value, *sys.argv[1:])", "a b"),
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.stdout == "7 a b\n"


def test_nothing_is_imported_from_the_current_folder(tmp_path: Path) -> None:
    (tmp_path / "numpy.py").write_text("print('a stranger')")
    done = subprocess.run(
        python_command("import numpy; print(numpy.arange(3))"),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.stdout == "[0 1 2]\n"


@pytest.mark.parametrize(
    ("code", "text"), [(0, "exit code 0"), (1, "exit code 1"), (-6, "SIGABRT"), (-11, "SIGSEGV"), (-40, "signal 40")]
)
@pytest.mark.skipif(sys.platform == "win32", reason="there are no signals")
def test_the_words_for_an_end(code: int, text: str) -> None:
    assert how_it_ended(code) == text


def test_no_other_code_starts_a_python_that_would_import_from_the_current_folder() -> None:
    starts = re.compile(r"\[sys\.executable, (?!\"-[IP]\")")
    assert [path.name for path in SOURCES.rglob("*.py") if starts.search(path.read_text())] == []


def test_temporary_folders_are_those_that_are_swept() -> None:
    """But for one that holds, for a moment, the only copy of an artifact."""
    makes = re.compile(r"mkdtemp|TemporaryDirectory|mkstemp|NamedTemporaryFile")
    found = {path.name for path in SOURCES.rglob("*.py") if makes.search(path.read_text())}
    assert found == {"files.py", "atomic_folder.py"}

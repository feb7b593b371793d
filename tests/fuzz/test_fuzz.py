"""A few damaged files of each kind: each is read, or refused with an error of Detent's, in time and memory.

`make fuzz MINUTES=60` tries far more, for every backend.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

from detent.errors import DataError
from tests.fuzz.harness import Reader, fuzz
from tests.fuzz.mutating import mutated

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="readers run in forks")
def test_damaged_files_are_read_or_refused() -> None:
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}/src:{ROOT}", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "tests.fuzz", "--each", "4", "--seed", "1"]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr[-3000:]
    assert ": 0 findings" in done.stdout


@pytest.mark.skipif(not hasattr(os, "fork"), reason="readers run in forks")
def test_the_harness_finds(tmp_path: Path) -> None:
    """What is raised, ends the process, or takes too much, each once; and goes on behind it."""

    def read(path: Path) -> None:
        match path.read_bytes()[0] % 4:
            case 0:
                raise KeyError("raw")
            case 1:
                os.abort()
            case 2:
                raise DataError("a", "b", "c")

    reader = Reader("sample", tmp_path / "file", bytes(range(8)), read)
    whats = ["fine" if finding is None else finding.what for finding in fuzz(reader, 0, range(64))]
    assert len(whats) == 64
    assert {what.splitlines()[-1] for what in whats} >= {"fine", "KeyError: 'raw'", "ended by SIGABRT"}
    isolated = Reader("sample", tmp_path / "file", bytes(range(8)), read, isolated=True)
    assert not any(finding and "SIGABRT" in finding.what for finding in fuzz(isolated, 0, range(64)))


def test_mutants_are_made_again_from_their_seed() -> None:
    seed = b'{"a": [1, 2, {"b": "text"}]}'
    some = [mutated(seed, random.Random(number)) for number in range(50)]
    assert some == [mutated(seed, random.Random(number)) for number in range(50)]
    assert len(set(some)) > 40

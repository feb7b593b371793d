"""A few damaged files of each kind: each is read, or refused with an error of Detent's, in time and memory.

`make fuzz MINUTES=60` tries far more, for every backend.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fuzz.mutating import mutated

ROOT = Path(__file__).resolve().parents[2]


pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="readers run in forks")


def printed(*arguments: str) -> str:
    """What Python prints, in a process of its own: forks of this one would lack its threads, and may wait for them."""
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}/src:{ROOT}", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, *arguments]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr[-3000:]
    return done.stdout


def test_damaged_files_are_read_or_refused() -> None:
    assert ": 0 findings" in printed("-m", "tests.fuzz", "--each", "1", "--seed", "1")


FINDING = """
import itertools, json, os, sys, time
from pathlib import Path
from detent.errors import DataError
from tests.fuzz import harness
from tests.fuzz.harness import Reader, fuzz

def read(path):
    match path.read_bytes()[0] % 4:
        case 0:
            raise KeyError("raw")
        case 1:
            os.abort()
        case 2:
            raise DataError("a", "b", "c")

def tell(read, count, isolated):
    reader = Reader("sample", Path(sys.argv[1]), bytes(range(8)), read, isolated)
    print(json.dumps(["fine" if found is None else found.what for found in fuzz(reader, 0, range(count))]))

tell(read, 64, False)
tell(read, 64, True)
harness._SECONDS = 0.1
tell(lambda _: sum(itertools.count()), 2, True)
harness._WAIT = 1
tell(lambda _: time.sleep(60), 1, True)
"""


def test_the_harness_finds(tmp_path: Path) -> None:
    """What is raised, ends the process, or takes too much, each once; and goes on behind it."""
    told = map(json.loads, printed("-c", FINDING, str(tmp_path / "file")).splitlines())
    whats, isolated, endless, waiting = told
    assert len(whats) == len(isolated) == 64
    assert {what.splitlines()[-1] for what in whats} >= {"fine", "KeyError: 'raw'", "ended by SIGABRT"}
    assert not any("SIGABRT" in what for what in isolated)
    assert endless == ["ended by SIGPROF"] * 2
    assert waiting == ["ended by SIGALRM"]


def test_mutants_are_made_again_from_their_seed() -> None:
    seed = b'{"a": [1, 2, {"b": "text"}]}'
    some = [mutated(seed, random.Random(number)) for number in range(50)]
    assert some == [mutated(seed, random.Random(number)) for number in range(50)]
    assert len(set(some)) > 40

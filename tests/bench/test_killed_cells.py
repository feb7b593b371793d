"""A run of a grid, killed where anything on disk changes: what is done stays, the same command computes the rest."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tests.killing import printed

PROGRAM = """
import json, sys
from pathlib import Path
import detent.files
from detent.bench import Results, load_grid, results, run_tasks, todo_of
from detent.bench.worker import compute
from tests.killing import Saving

saving = Saving(detent.files, results)
grid, folder = load_grid(sys.argv[1]), Path(sys.argv[2])

def engine(tasks, results, done):
    for task in tasks:
        results.write(made := compute(task, "tests.bench.jobs:trivial"))
        done(made)

def run(where):
    results = Results(where)
    return run_tasks(todo_of(grid, results), results, engine)

def names(where):
    return sorted(str(path.relative_to(where)) for path in where.rglob("*"))

kept = []
for line in saving.lines(lambda: run(folder / "whole"), folder / "whole"):
    where = folder / str(line)
    saving.kill(lambda: run(where), line)
    done = [one.task.key for one in Results(where)] if where.is_dir() else []
    again = [one.task.key for one in run(where)]
    assert sorted(done + again) == sorted({*done, *again}), "none twice"
    assert names(where) == names(folder / "whole"), (line, "all of them, and nothing left over")
    assert [one.error for one in Results(where)] == [None] * 4
    kept.append(len(done))
print(json.dumps(kept))
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="children are forks")
def test_what_is_killed_goes_on(grid_file: Path, tmp_path: Path) -> None:
    kept = json.loads(printed(tmp_path / "temporary", "-c", PROGRAM, grid_file, tmp_path / "runs").splitlines()[-1])
    assert set(kept) == {0, 1, 2, 3, 4}, "killed before, between and after"

"""A run of a grid, killed where anything on disk changes: what is done stays, the same command computes the rest."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

PROGRAM = """
import json, os, signal, sys
from pathlib import Path
import detent.files
from detent.bench import Results, load_grid, results as results_module, run_tasks, todo_of
from detent.bench.worker import compute
from tests.line_tracer import at_each_line, kill_at

SAVING = {detent.files.__file__, results_module.__file__}
grid, folder = load_grid(sys.argv[1]), Path(sys.argv[2])

def engine(tasks, results, done):
    for task in tasks:
        results.write(made := compute(task, "tests.bench.jobs:trivial"))
        done(made)

def run(where):
    results = Results(where)
    return run_tasks(todo_of(grid, results), results, engine)

def held(where):
    return {str(path.relative_to(where)): (path.stat().st_size, path.stat().st_mtime_ns) for path in where.rglob("*")}

lines, last = [], None

def look(line):
    global last
    now = held(folder / "whole")
    if now != last:
        lines.append(line)
    last = now

with at_each_line(SAVING, look):
    run(folder / "whole")
whole = sorted(held(folder / "whole"))
kept = []
for line in lines:
    where = folder / str(line)
    child = os.fork()
    if not child:
        with at_each_line(SAVING, kill_at(line)):
            run(where)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    done = [one.task.key for one in Results(where)] if where.is_dir() else []
    again = [one.task.key for one in run(where)]
    assert sorted(done + again) == sorted({*done, *again}), "none twice"
    assert sorted(held(where)) == whole, (line, "all of them, and nothing left over")
    assert [one.error for one in Results(where)] == [None] * 4
    kept.append(len(done))
print(json.dumps(kept))
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="children are forks")
def test_what_is_killed_goes_on(grid_file: Path, tmp_path: Path) -> None:
    ours = {"PYTHONPATH": f"{ROOT}/src:{ROOT}", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", PROGRAM, str(grid_file), str(tmp_path / "runs")]
    done = subprocess.run(command, cwd=ROOT, env={**os.environ, **ours}, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    kept = json.loads(done.stdout.splitlines()[-1])
    assert set(kept) == {0, 1, 2, 3, 4}, "killed before, between and after"

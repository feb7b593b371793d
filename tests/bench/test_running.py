"""Runs: what is there is not computed again, and a worker that dies loses nothing that is done."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import threading
from functools import partial
from pathlib import Path

import pytest

from detent.bench import Result, Results, load_grid, run_here, run_on_ray, run_tasks, todo_of, write_slurm
from detent.bench.local import _started
from detent.bench.worker import compute
from detent.errors import ArtifactError, RecipeError

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def _importable(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT))


def in_this_process(tasks, results, done):
    """What a worker does, without one: for what is not about processes."""
    for task in tasks:
        result = compute(task, "tests.bench.jobs:trivial")
        results.write(result)
        done(result)


def run(grid, results, engine=in_this_process, *, again=False, part=(1, 1)):
    return run_tasks(todo_of(grid, results, again=again, part=part), results, engine, part=part)


def on_workers(work, *, workers=1, tries=3):
    return partial(run_here, workers=workers, tries=tries, work=f"tests.bench.jobs:{work}")


def test_what_is_done_is_not_computed_again(grid, tmp_path):
    results = Results(tmp_path / "results")
    first = run(grid, results, on_workers("trivial", workers=2))
    assert {result.task.cell.axes["seed"]: result.figures["accuracy"]["simulated"] for result in first} == {
        0: 90.0, 1: 91.0, 2: 92.0, 3: 93.0,
    }  # fmt: skip
    assert run(grid, results) == []
    results.path(first[0].task.key).unlink()
    (again,) = run(grid, results)
    assert again.task.key == first[0].task.key


def test_a_result_has_what_reproduces_it(grid, tmp_path):
    results = Results(tmp_path / "results")
    run(grid, results)
    told = json.loads(next(results.cells.glob("*.json")).read_text())
    assert {"torch", "detent", "python", "numpy"} <= set(told["machine"]["versions"])
    assert told["machine"]["cpu_kind"]
    assert set(told["hashes"]) == {"weights", "data"}
    assert len(told["hashes"]["weights"]) == 64
    assert told["cell"]["config"]["train"]["seed"] in (0, 1, 2, 3)
    assert told["cell"]["config"]["recipe"]["weight"]["bits"] == 4


def test_a_killed_worker_loses_no_cell(grid, tmp_path):
    results = Results(tmp_path / "results")
    found = run(grid, results, on_workers("killed_once"))
    assert sorted(result.task.cell.axes["seed"] for result in found) == [0, 1, 2, 3]
    assert all(result.error is None for result in found)
    assert {result.task.cell.axes["seed"]: result.tries for result in found} == {0: 1, 1: 2, 2: 1, 3: 1}
    begun = sorted(path.name for path in (tmp_path / "grid").glob("?-?"))
    assert begun == ["0-0", "1-0", "1-1", "2-0", "3-0"], "the others ran once"


def test_a_worker_ends_with_whoever_started_it(grid, tmp_path):
    """A run that is killed leaves no process behind that goes on with its cell."""
    results = Results(tmp_path / "results")
    task = todo_of(grid, results).left[0]
    worker = _started(results.folder, 1, "tests.bench.jobs:endless", False, subprocess.DEVNULL)
    worker.stdin.write(json.dumps({**task.to_dict(), "tries": 1}) + "\n")
    worker.stdin.flush()
    begun = tmp_path / "grid" / f"{task.cell.axes['seed']}-0"
    for _ in range(600):
        if begun.exists():
            break
        threading.Event().wait(0.1)
    assert begun.exists()
    worker.stdin.close()
    worker.stdout.close()
    assert worker.wait(timeout=60) == 1
    assert results.read(task.key) is None


def test_what_fails_says_why_and_stops_nothing(grid, tmp_path):
    results = Results(tmp_path / "results")
    found = {
        result.task.cell.axes["seed"]: result for result in run(grid, results, on_workers("killed_always", tries=2))
    }
    assert found[0].error is found[3].error is None
    assert "SIGKILL, 2 times" in found[1].error
    assert found[2].error.splitlines()[-1] == "ValueError: two is no good"
    assert run(grid, results) == [], "a failure is a result"
    assert len(run(grid, results, again=True)) == 2
    assert all(result.error is None for result in results)


def test_a_cell_that_failed_is_not_taken_for_its_next_try(grid_file, tmp_path):
    """Whose worker is killed: the file of the last time is no result of this one."""
    results = Results(tmp_path / "results")
    cell = load_grid(grid_file, overrides=["seeds=[1]"])
    (task,) = todo_of(cell, results).left
    results.write(Result(task, {}, "of the last time"))
    (found,) = run(cell, results, on_workers("killed_once"), again=True)
    assert (found.error, found.tries) == (None, 2)


def test_parts_are_disjoint_and_are_all(grid, tmp_path):
    results = Results(tmp_path / "results")
    one, other = (run(grid, results, part=(number, 2)) for number in (1, 2))
    assert (len(one), len(other)) == (2, 2)
    assert run(grid, results) == []
    with pytest.raises(RecipeError, match="parts 1 to 2"):
        todo_of(grid, results, part=(3, 2))


def test_damaged_results_are_refused_by_name(grid, tmp_path):
    results = Results(tmp_path / "results")
    (done, *_) = run(grid, results)
    results.path(done.task.key).write_text("{}")
    with pytest.raises(ArtifactError, match=results.path(done.task.key).name):
        todo_of(grid, results)


@pytest.mark.parametrize(
    ("where", "value"),
    [("axes", {}), ("axes", 5), ("algorithm", []), ("seconds", float("nan")), ("seconds", 1e300), ("config", None)],
    ids=str,
)
def test_results_of_another_form_are_refused(grid, tmp_path, where, value):
    """An estimate is computed of them, and a page."""
    results = Results(tmp_path / "results")
    (done, *_) = run(grid, results)
    told = json.loads(results.path(done.task.key).read_text())
    place = {"seconds": told, "algorithm": told["cell"]["axes"]}.get(where, told["cell"])
    place[where] = value
    results.path(done.task.key).write_text(json.dumps(told))
    with pytest.raises(ArtifactError, match="remove the file"):
        todo_of(grid, results)


def test_an_estimate_is_by_what_is_there(grid, tmp_path):
    results = Results(tmp_path / "results")
    assert todo_of(grid, results).seconds() is None
    (*_, last) = run(grid, results)
    results.path(last.task.key).unlink()
    assert todo_of(grid, results).seconds() > 0


def test_slurm_scripts(grid_file, tmp_path):
    array, report = write_slurm(grid_file, tmp_path / "results", count=4, jobs=16, scripts=tmp_path / "scripts")
    text = array.read_text()
    assert "#SBATCH --array=1-4\n" in text
    for path in (array, report):
        assert subprocess.run(["sh", "-n", str(path)], timeout=60).returncode == 0
    command = text.splitlines()[-1].replace('"$SLURM_ARRAY_TASK_ID/4"', "2/4 --dry-run --json")
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert [cell["seed"] for cell in json.loads(done.stdout)["left"]] == [1]


@pytest.mark.slow
def test_one_cell_for_real(grid_file, tmp_path):
    """Trained, deployed, verified, and measured."""
    overrides = [
        "networks={resnet20: {options: {depth: 1, width: 0.25}}}", "seeds=[0]", "data.train_batches=2",
        "evaluate={batches: 1, verified: 1}",
    ]  # fmt: skip
    grid = load_grid(grid_file, overrides=overrides)
    results = Results(tmp_path / "results")
    engine = partial(run_here, workers=1)
    (found,) = run_tasks(todo_of(grid, results), results, engine)
    assert found.error is None, found.error
    figures = found.figures
    assert 0 <= figures["accuracy"]["simulated"] <= 100
    assert figures["deployed"]["holds"]
    assert figures["deployed"]["accuracy"]["twin"] == figures["deployed"]["accuracy"]["simulated"]
    assert figures["parameter_bytes"]["quantized"] < figures["parameter_bytes"]["float"] / 3
    assert figures["seconds"]["quantize"] > 0


RAY = """
import sys
import threading
from functools import partial
from detent.bench import Results, load_grid, run_on_ray, run_tasks, todo_of
results = Results(sys.argv[2])
engine = partial(run_on_ray, address=sys.argv[3], work="tests.bench.jobs:killed_once")
run_tasks(todo_of(load_grid(sys.argv[1]), results), results, engine)
print(sorted((one.task.cell.axes["seed"], one.error) for one in results))
"""


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="Ray is not installed: pip install 'detent[bench]'")
def test_two_nodes_of_ray(grid_file, tmp_path, monkeypatch):
    """A cluster of two nodes on this machine; the process of one cell is killed, and the cell is run again."""
    from ray.cluster_utils import Cluster

    places = [str(ROOT), str(ROOT / "src"), *filter(None, [os.environ.get("PYTHONPATH")])]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(places))  # of the nodes too
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
    try:
        cluster.add_node(num_cpus=1)
        command = [sys.executable, "-c", RAY, str(grid_file), str(tmp_path / "results"), cluster.address]
        done = subprocess.run(command, capture_output=True, text=True, timeout=500)
        assert done.returncode == 0, done.stderr
        assert done.stdout.splitlines()[-1] == "[(0, None), (1, None), (2, None), (3, None)]"
        assert (tmp_path / "grid" / "1-1").exists(), "the cell of seed 1 was begun twice"
    finally:
        cluster.shutdown()


def test_ray_is_named_where_it_is_missing(grid, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(Exception, match=r"detent\[bench\]"):
        run_on_ray(todo_of(grid, Results(tmp_path)).left, Results(tmp_path), lambda _: None)

"""The benchmark: algorithms x targets x networks, in cells that are computed once, and what they show."""

from detent.bench.any_width import ANY_WIDTH, at_any_width
from detent.bench.cell import Cell, Hashes
from detent.bench.grid import Grid, load_grid
from detent.bench.leaderboard import Row, Spread, rows_of, write_leaderboard
from detent.bench.local import run_here
from detent.bench.on_ray import run_on_ray
from detent.bench.results import Result, Results, Task
from detent.bench.run import Todo, run_tasks, todo_of
from detent.bench.slurm import write_slurm
from detent.bench.zoo import Experiment, experiments, write_zoo

__all__ = [
    "ANY_WIDTH",
    "Cell",
    "Experiment",
    "Grid",
    "Hashes",
    "Result",
    "Results",
    "Row",
    "Spread",
    "Task",
    "Todo",
    "at_any_width",
    "experiments",
    "load_grid",
    "rows_of",
    "run_here",
    "run_on_ray",
    "run_tasks",
    "todo_of",
    "write_leaderboard",
    "write_slurm",
    "write_zoo",
]

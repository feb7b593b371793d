"""`detent bench`: algorithms x targets x networks, computed once, and a leaderboard of what came of it."""

from __future__ import annotations

import json as json_format
import sys
from datetime import timedelta
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from detent.cli.allow_imports import AllowImports
from detent.cli.interrupts import nothing_written, on_interrupt
from detent.cli.paths import require_path

if TYPE_CHECKING:
    from detent.bench import Todo

__all__ = ["bench"]

bench = typer.Typer(
    name="bench",
    no_args_is_help=True,
    rich_markup_mode=None,
    help="Compare algorithms on targets: run a grid, write its leaderboard, write MQBench's zoo of configs.",
)


class EngineName(StrEnum):
    local = "local"
    ray = "ray"
    slurm = "slurm"


def _part(text: str) -> tuple[int, int]:
    number, slash, of = text.partition("/")
    if not (slash and number.isdigit() and of.isdigit()):
        raise typer.BadParameter(f"{text}: write 2/5 for the second of five parts")
    return int(number), int(of)


@bench.command()
@on_interrupt(nothing_written)
def run(
    grid: Annotated[Path, typer.Argument(help="A .yaml, .json or .toml file.", callback=require_path)],
    overrides: Annotated[
        list[str] | None,
        typer.Argument(metavar="[KEY=VALUE]...", help="Override values of the grid: train.epochs=2"),
    ] = None,
    out: Annotated[Path, typer.Option("--out", "-o", help="The folder of results.")] = Path("results"),
    engine: Annotated[EngineName, typer.Option(help="Where cells are computed; slurm writes scripts.")] = (
        EngineName.local
    ),
    workers: Annotated[
        int | None, typer.Option(min=1, max=1024, help="Processes, or Slurm jobs.", show_default="1; slurm: 16")
    ] = None,
    tries: Annotated[int, typer.Option(min=1, max=100, help="Attempts at a cell whose process dies.")] = 3,
    again: Annotated[bool, typer.Option("--again", help="Retry failed cells.")] = False,
    part: Annotated[
        str, typer.Option(help="Compute one part only, such as 2/5, to share a grid among machines.")
    ] = "1/1",
    address: Annotated[
        str | None, typer.Option(help="The Ray cluster.", show_default="RAY_ADDRESS, or a new one here")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the cells and an estimate, compute nothing.")] = (
        False
    ),
    allow_imports: AllowImports = False,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Compute the cells of a grid that have no result yet; exit code 1 if one failed.

    To continue a run that was stopped, run the same command again.

    Example: detent bench run grid.yaml -o results/ --workers 2
    """
    from detent.bench import Results, load_grid, run_here, run_on_ray, run_tasks, todo_of, write_slurm

    asked = load_grid(grid, overrides=overrides or (), allow_imports=allow_imports)
    results, share = Results(out), _part(part)
    todo = todo_of(asked, results, part=share, again=again)
    if dry_run:
        _show_todo(todo, workers or 1, json=json)
        return
    if engine is EngineName.slurm:
        count = len(todo.left) + len(todo.there)
        scripts = out / "slurm"
        for path in write_slurm(
            grid, out, overrides or (), count=count, jobs=workers or 16, scripts=scripts, allow_imports=allow_imports
        ):
            print(path)
        return
    where = (
        partial(run_on_ray, address=address, tries=tries, allow_imports=allow_imports)
        if engine is EngineName.ray
        else partial(run_here, workers=workers or 1, tries=tries, allow_imports=allow_imports)
    )
    with on_interrupt(lambda: f"finished cells are in {results.cells}; run the same command to continue"):
        found = run_tasks(todo, results, where, part=share)
    failed = [result for result in (*todo.there, *found) if result.error is not None]
    if json:
        counts = {"computed": len(found), "there": len(todo.there), "failed": len(failed)}
        print(json_format.dumps({"folder": str(out), **counts}, indent=2))
    else:
        print(f"{out}: {len(found)} cells computed, {len(todo.there)} were there, {len(failed)} of all failed")
    for result in failed:
        assert result.error is not None
        print(f"{result.task.cell}: {result.error.splitlines()[-1]}", file=sys.stderr)
    if failed:
        raise typer.Exit(1)


def _show_todo(todo: Todo, workers: int, *, json: bool) -> None:
    seconds = todo.seconds()
    if json:
        cells = [{"key": task.key, **task.cell.axes} for task in todo.left]
        print(json_format.dumps({"left": cells, "there": len(todo.there), "seconds": seconds}, indent=2))
        return
    for task in todo.left:
        print(f"{task.key[:12]}  {task.cell}")
    if seconds is None:
        print("no estimate: no cell has been computed yet", file=sys.stderr)
    else:
        left = timedelta(seconds=round(seconds / workers))
        print(f"about {left} on {workers} workers, by the cells that are there", file=sys.stderr)
    print(f"{len(todo.left)} cells to compute, {len(todo.there)} are there")


@bench.command()
@on_interrupt(nothing_written)
def report(
    results: Annotated[Path, typer.Argument(help="A folder of results.", callback=require_path)],
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Where the pages are written.", show_default="the folder")
    ] = None,
    title: Annotated[str, typer.Option(help="The title of the pages.")] = "Leaderboard",
) -> None:
    """Write leaderboard.html, leaderboard.md and leaderboard.json: means over seeds, accuracies, latency, size, cost.

    Example: detent bench report results/
    """
    from detent.bench import Results, write_leaderboard

    for path in write_leaderboard(list(Results(results)), out or results, title=title):
        print(path)


@bench.command()
@on_interrupt(nothing_written)
def zoo(
    out: Annotated[Path, typer.Argument(help="The folder to write.")] = Path("qbench_zoo"),
) -> None:
    """Write MQBench's zoo: a config and a script for each of its experiments.

    Example: detent bench zoo; cd qbench_zoo/lsq_experiments/resnet18_4bit_academic; sh run.sh --data imagenet/
    """
    from detent.bench import write_zoo

    print(f"{out}: {len(write_zoo(out))} configs; each runs by `detent train config.yaml`")

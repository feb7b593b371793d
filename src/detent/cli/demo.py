"""`detent demo`: a trained network, quantized for several targets, deployed, and run on the real engines."""

from __future__ import annotations

import json as json_format
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from detent.cli.interrupts import on_interrupt
from detent.cli.options import AsJson

if TYPE_CHECKING:
    from detent.demo import Row

__all__ = ["demo"]


@on_interrupt(lambda: "artifacts that are complete are in the folder of --out, if you gave one")
def demo(
    json: AsJson = False,
    out: Annotated[Path | None, typer.Option(help="Keep the artifacts in this folder.")] = None,
) -> None:
    """Quantize a small trained network for several targets and run it in the engines that are installed.

    For each target: the top-1 accuracy on 1,000 Fashion-MNIST images in float, simulated, on the integer twin and on
    the real engine; the size of the file; int8 to float latency in the same engine; and whether engine and twin agree
    integer for integer. Targets whose files need a package that is not installed are left out, and named.

    Example: detent demo --out artifacts
    """
    import torch
    from rich.console import Console
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    from detent.demo import JOBS, images, run, trained
    from detent.files import temporary_folder

    # The network is small: 25 s on one thread, where two waited for each other for minutes beside other work.
    torch.set_num_threads(1)
    net, data = trained(), images()
    missing = {job.backend: why for job in JOBS if (why := _not_installed(job.backend)) is not None}
    jobs = [job for job in JOBS if job.backend not in missing]
    rows: list[Row] = []
    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with (
        temporary_folder() as temporary,
        Progress(*columns, console=Console(file=sys.stderr), transient=True) as progress,
    ):
        task = progress.add_task("", total=len(jobs))
        for number, job in enumerate(jobs):
            progress.update(task, description=f"{job.backend}, {job.recipe}", completed=number)
            folder = (out or temporary) / f"{job.backend}-{job.recipe}{job.bits or ''}"
            rows.append(run(job, net, data, folder))
    if json:
        print(json_format.dumps([row.to_dict() for row in rows], indent=2))
    else:
        _print_table(rows)
    for backend, why in missing.items():
        print(f"left out: {backend}, because {why}", file=sys.stderr)


def _not_installed(backend: str) -> str | None:
    """Why the files of a target cannot be written here, and what to install; None if they can."""
    from detent.errors import DeployError
    from detent.targets import BACKENDS
    from detent.targets.formats import find_format

    try:
        for file in BACKENDS[backend].files:
            find_format(file).require_package()
    except DeployError as error:
        return f"{error.found}: {error.to_do}"
    return None


def _print_table(rows: list[Row]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(title="top-1 in %, 1,000 Fashion-MNIST test images", title_justify="left", title_style="bold")
    for column in ("backend", "algorithm", "bits"):
        table.add_column(column, no_wrap=True)
    for column in ("float", "simulated", "twin", "engine", "size", "int8 : float"):
        table.add_column(column, justify="right")
    table.add_column("bit-exact")
    for row in rows:
        table.add_row(
            row.backend,
            row.algorithm,
            row.bits,
            _percent(row.accuracy_float),
            _percent(row.accuracy_simulated),
            _percent(row.accuracy_twin),
            _percent(row.accuracy_engine),
            f"{row.size_kb:.0f} KB",
            "" if row.latency_ratio is None else f"{row.latency_ratio:.2f}",
            row.exact,
        )
    console = Console()
    # A table with its words cut off says nothing: a narrow terminal wraps lines instead.
    Console(width=max(console.width, 122)).print(table)


def _percent(value: float | None) -> str:
    return "" if value is None else f"{value:.1f}"

"""A grid as a Slurm array job: scripts that you submit on the cluster."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from detent.files import write_bytes

__all__ = ["write_slurm"]


def write_slurm(
    grid: Path,
    folder: Path,
    overrides: Sequence[str] = (),
    *,
    count: int,
    jobs: int,
    scripts: Path,
    allow_imports: bool = False,
) -> list[Path]:
    """`array.sh`, each job of which computes its part of the cells, and `report.sh` for afterward; their paths.

    Results lie in `folder`, which all nodes see; a job that is submitted again goes on where it was.
    """
    scripts.mkdir(parents=True, exist_ok=True)
    jobs = min(jobs, max(count, 1))
    common = [sys.executable, "-P", "-m", "detent", "bench"]  # -P: nothing is imported from where it runs
    run = shlex.join([*common, "run", str(grid.resolve()), *overrides, "-o", str(folder.resolve()), "--workers", "1"])
    allowed = " --allow-imports" if allow_imports else ""
    array = (
        "#!/bin/sh\n"
        f"# {count} cells in {jobs} jobs: sbatch {scripts / 'array.sh'}\n"
        "#SBATCH --job-name=detent-bench\n"
        f"#SBATCH --array=1-{jobs}\n"
        "#SBATCH --ntasks=1\n"
        "#SBATCH --cpus-per-task=1\n"
        f"#SBATCH --output={shlex.quote(str(scripts.resolve() / 'job-%a.log'))}\n"
        f'exec {run}{allowed} --part "$SLURM_ARRAY_TASK_ID/{jobs}"\n'
    )
    report = f"#!/bin/sh\nexec {shlex.join([*common, 'report', str(folder.resolve())])}\n"
    written = []
    for name, text in (("array.sh", array), ("report.sh", report)):
        write_bytes(scripts / name, text.encode())
        (scripts / name).chmod(0o755)
        written.append(scripts / name)
    return written

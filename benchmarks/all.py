"""All benchmarks of speed, several times, and their table in benchmarks/README.md.

    python benchmarks/all.py [--runs 5] [--only qat_step latency]            (or: make bench-all)

Every figure is a ratio that one process measured, the candidates taking turns, except seconds of `startup`. Runs are
processes of their own; the table has the median of the runs, the least and the greatest. Run it alone on the machine.
"""

from __future__ import annotations

import argparse
import datetime
import importlib.metadata
import json
import os
import platform
import statistics
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

HERE = Path(__file__).resolve().parent
PAGE = HERE / "README.md"
BEGIN, END = "<!-- figures -->\n", "<!-- /figures -->\n"
PACKAGES = ("torch", "onnxruntime", "openvino", "ai-edge-litert", "ncnn")


class Benchmark(NamedTuple):
    """A script with its arguments, and the goal of each figure that has one."""

    command: str
    goals: Mapping[str, float]


STEP = {
    "train step, eager": 1.1,
    "saved for backward, as codes": 0.75,
    "saved for backward, as codes and residues": 0.75,
    "calibrate 8 batches": 1.05,
}
BENCHMARKS = (
    *(
        Benchmark(f"qat_step.py --network {network} --backend {backend}", STEP)
        for network in ("resnet18", "mobilenet_v2", "vit_tiny")
        for backend in ("onnxruntime", "tensorrt")
    ),
    Benchmark("kernels.py", {"observe minmax": 1.3}),
    Benchmark("onnx_quantize.py", {"time, of quantize_static's": 0.6, "memory, of quantize_static's": 0.5}),
    Benchmark("latency.py --peer", {}),
    Benchmark("twin_speed.py onnxruntime openvino litert ncnn torch_x86", {}),
    Benchmark("startup.py", {"import detent": 0.05, "detent --help": 0.25, "a missing file": 0.5}),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--only", nargs="+", default=[""], help="what a command begins with; the page is not written")
    asked = parser.parse_args()
    chosen = [one for one in BENCHMARKS if one.command.startswith(tuple(asked.only))]
    found: dict[str, list[dict[str, float]]] = {one.command: [] for one in chosen}
    for run in range(asked.runs):
        for one in chosen:
            print(f"run {run + 1} of {asked.runs}: {one.command}", file=sys.stderr, flush=True)
            found[one.command].append(figures_of(one.command))
    text = table(chosen, found, asked.runs)
    print(text)
    if asked.only == [""]:
        before, _, rest = PAGE.read_text().partition(BEGIN)
        PAGE.write_text(before + BEGIN + text + END + rest.partition(END)[2])


def figures_of(command: str) -> dict[str, float]:
    done = subprocess.run(
        [sys.executable, *command.split(), "--json"], cwd=HERE, stdout=subprocess.PIPE, text=True, check=True
    )
    figures: dict[str, float] = json.loads(done.stdout[done.stdout.index("{") :])
    return figures


def table(benchmarks: list[Benchmark], found: Mapping[str, list[dict[str, float]]], runs: int) -> str:
    """The figures as Markdown, with what they were measured on.

    >>> runs = [{"time": 1.0}, {"time": 3.0}, {"time": 2.0}]
    >>> table([Benchmark("a.py", {"time": 1.5})], {"a.py": runs}, 3).splitlines()[-1]
    '| `a.py` | time | **2.00** | 1.00 to 3.00 | 1.50, missed |'
    """
    versions = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in PACKAGES if _is_installed(name))
    lines = [
        f"{datetime.datetime.now(datetime.UTC):%Y-%m-%d}, {_cpu()}, {os.cpu_count()} cores, {versions}; {runs} runs.",
        "",
        "| command | figure | median | range | goal |",
        "| --- | --- | --- | --- | --- |",
    ]
    for one in benchmarks:
        for name in found[one.command][0]:
            values = [run[name] for run in found[one.command]]
            middle, goal = statistics.median(values), one.goals.get(name)
            said = "" if goal is None else f"{goal:.2f}, {'met' if middle <= goal else 'missed'}"
            lines.append(
                f"| `{one.command}` | {name} | **{middle:.2f}** | {min(values):.2f} to {max(values):.2f} | {said} |"
            )
    return "\n".join(lines) + "\n"


def _is_installed(name: str) -> bool:
    try:
        return bool(importlib.metadata.version(name))
    except importlib.metadata.PackageNotFoundError:
        return False


def _cpu() -> str:
    """The processor's name, and the kind that `detent.cpus` makes of it."""
    from detent import cpus

    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    name = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())
    return f"{name} ({cpus.here()})"


if __name__ == "__main__":
    main()

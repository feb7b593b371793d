"""What post-training quantization itself costs, in a process of its own: the peak of its memory, and time.

    python benchmarks/ptq_costs.py [--steps 2000]

AdaRound on ResNet-20 with 1,024 images: at most 2 GB and 6 minutes on 2 cores at 2,000 steps for each layer. GPTQ on a
linear layer of 1024 x 1024 weights: at most 5 seconds. `ptq_accuracy.py --costs` prints the same lines.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import torch

import detent
from detent.algorithms.gptq_core import gptq_weight
from detent.recipes import Recipe
from ptq_data import load

MOST_MEGABYTES, MOST_SECONDS, MOST_GPTQ_SECONDS = 2000, 360, 5


def measured(steps: int) -> Iterator[tuple[str, bool]]:
    """A line for each, and whether it kept its limit; a process for each, so that none sees the other's memory."""
    for what in ("adaround", "gptq"):
        command = [sys.executable, __file__, "--what", what, "--steps", str(steps)]
        done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=Path(__file__).parent)
        line = done.stdout.strip().splitlines()[-1]
        yield line, "MISSED" not in line


def adaround(steps: int) -> str:
    task = load("resnet20", images=100)
    weight = {"bits": 4, "granularity": "per_channel"}
    data = {**Recipe.named("adaround").to_dict(), "algorithms": [{"name": "adaround", "options": {"steps": steps}}]}
    data["weight"] = {**data["weight"], **weight}
    prepared = detent.prepare(task.net, (task.calibration[0][:2],), backend="academic", recipe=Recipe.from_dict(data))
    before, start, own = peak_megabytes(), time.perf_counter(), time.process_time()
    detent.calibrate(prepared, task.calibration)
    seconds, cpu, peak = time.perf_counter() - start, time.process_time() - own, peak_megabytes()
    kept = peak < MOST_MEGABYTES and (steps < 2000 or seconds < MOST_SECONDS)
    return (
        f"AdaRound, ResNet-20, 1024 images, {steps} steps: peak {peak:.0f} MB ({before:.0f} MB before it; limit "
        f"{MOST_MEGABYTES}), {seconds:.0f} s ({cpu:.0f} s of processor; limit {MOST_SECONDS} at 2000 steps)"
        + ("" if kept else "  MISSED")
    )


def gptq() -> str:
    torch.manual_seed(0)
    weight, x = torch.randn(1024, 1024), torch.randn(4096, 1024) @ torch.randn(1024, 1024) / 32
    step = weight.abs().amax(1, keepdim=True) / 7

    def to_grid(values: torch.Tensor, columns: torch.Tensor) -> torch.Tensor:
        del columns  # every column has the scale of its row
        return torch.clamp(torch.round(values / step), -8, 7) * step

    start, own = time.perf_counter(), time.process_time()
    gptq_weight(weight, x.t() @ x, to_grid, damping=0.01, act_order=True)
    seconds, cpu = time.perf_counter() - start, time.process_time() - own
    missed = "" if seconds < MOST_GPTQ_SECONDS else "  MISSED"
    return f"GPTQ, 1024 x 1024: {seconds:.2f} s ({cpu:.2f} s of processor; limit {MOST_GPTQ_SECONDS}){missed}"


def peak_megabytes() -> float:
    """The most memory this process ever held, as Linux counts it (VmHWM)."""
    status = Path("/proc/self/status").read_text()
    return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM:")) / 1024


def main() -> int:
    parser = argparse.ArgumentParser(description="memory and time of post-training quantization")
    parser.add_argument("--steps", type=int, default=2000, help="of learned rounding, for each layer")
    parser.add_argument("--what", choices=("adaround", "gptq"), help="one of them, in this process")
    given = parser.parse_args()
    if given.what:
        print(adaround(given.steps) if given.what == "adaround" else gptq())
        return 0
    kept = True
    for line, good in measured(given.steps):
        print(line, flush=True)
        kept &= good
    return 0 if kept else 1


if __name__ == "__main__":
    raise SystemExit(main())

"""How prepare, calibrate, deploy and verify grow with the network: seconds, memory, and the exponent of the growth.

    python benchmarks/scale.py [--layers 10 100 1000 5000] [--kind chain residual] [--backend onnxruntime]

Networks of 1 x 1 convolutions with 4 channels, batch norm and ReLU, with random weights: what is measured is what is
done for each layer, not the arithmetic. Each size runs in a process of its own, one thread. The exponent is that of
seconds (less those of the smallest network) from one size to the next: 1 is in proportion to the network, 2 is its
square. Memory is the peak of the process after each step. Linux only: the peak is read from /proc.
"""

from __future__ import annotations

import argparse
import cProfile
import json
import math
import pstats
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

STEPS = ("import", "prepare", "calibrate", "deploy", "verify")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", nargs="*", type=int, default=[10, 100, 1000, 5000])
    parser.add_argument("--kind", nargs="*", default=["chain", "residual"], choices=["chain", "residual"])
    parser.add_argument("--backend", default="onnxruntime")
    parser.add_argument("--profile", choices=STEPS[1:], help="print where the time of this step goes")
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.one:
        print(json.dumps(measure(given.kind[0], given.layers[0], given.backend, given.profile)))
        return
    for kind in given.kind:
        print(f"{kind}, {given.backend}: seconds (exponent), MB at the peak")
        print(f"{'layers':>8}" + "".join(f"{step:>26}" for step in STEPS[1:]))
        seen: list[tuple[int, dict[str, Any]]] = []
        for layers in given.layers:
            command = [sys.executable, __file__, "--one", "--kind", kind, "--backend", given.backend]
            command += ["--layers", str(layers), *(["--profile", given.profile] if given.profile else [])]
            done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
            if done.returncode:
                print(f"{layers:>8} failed")
                continue
            *said, last = done.stdout.splitlines()
            print(*said, sep="\n", end="\n" if said else "")
            seen.append((layers, json.loads(last)))
            cells = (f"{cell(seen, step)}, {seen[-1][1][step]['peak']:5.0f}" for step in STEPS[1:])
            print(f"{layers:>8}" + "".join(f"{text:>26}" for text in cells), flush=True)


def cell(seen: list[tuple[int, dict[str, Any]]], step: str) -> str:
    """The seconds of the last size, and the exponent from the one before."""
    seconds = [found[step]["seconds"] for _, found in seen]
    if len(seen) < 3:
        return f"{seconds[-1]:7.2f}       "
    growth = (seconds[-1] - seconds[0]) / max(seconds[-2] - seconds[0], 1e-3)
    exponent = math.log(max(growth, 1e-3)) / math.log(seen[-1][0] / seen[-2][0])
    return f"{seconds[-1]:7.2f} ({exponent:4.2f})"


def measure(kind: str, layers: int, backend: str, profiled: str | None) -> dict[str, dict[str, float]]:
    found: dict[str, dict[str, float]] = {}
    profile = cProfile.Profile()

    def step(name: str, run: Callable[[], Any]) -> Any:
        if name == profiled:
            profile.enable()
        start = time.process_time()
        result = run()
        found[name] = {"seconds": time.process_time() - start, "peak": peak() / 2**20}
        if name == profiled:
            profile.disable()
            pstats.Stats(profile).sort_stats("tottime").print_stats(25).sort_stats("cumtime").print_stats(45)
        return result

    torch = step("import", lambda: __import__("torch"))
    import detent

    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model, x = network(kind, layers).eval(), torch.randn(2, 4, 8, 8)
    with tempfile.TemporaryDirectory() as folder:
        warm = network(kind, 2).eval()  # what is imported when it is first used, and what the engine starts
        prepared = detent.prepare(warm, (x,), backend=backend)
        detent.calibrate(prepared, [(x,)])
        detent.deploy(prepared, Path(folder, "warm")).verify([(x,)], latency=False)
        prepared = step("prepare", lambda: detent.prepare(model, (x,), backend=backend))
        step("calibrate", lambda: detent.calibrate(prepared, [(x,), (0.7 * x,)]))
        artifact = step("deploy", lambda: detent.deploy(prepared, Path(folder, "out")))
        verdict = step("verify", lambda: artifact.verify([(x,)], latency=False))
        if not verdict.holds:
            raise SystemExit(f"{layers} layers: {verdict}")
    return found


def network(kind: str, layers: int) -> Any:
    """`layers` convolutions, one behind the other; of a residual chain, each is added to what went into it."""
    import torch
    from torch import nn

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.norm = nn.Conv2d(4, 4, 1), nn.BatchNorm2d(4)
            self.norm.weight.data.fill_(0.5 if kind == "chain" else 0.1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = self.norm(self.conv(x))
            return torch.relu(y) if kind == "chain" else torch.relu(x + y)

    return nn.Sequential(*(Block() for _ in range(layers)))


def peak() -> int:
    """Bytes that the process had at its peak."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * int(next(line for line in lines if line.startswith("VmHWM")).split()[1])


if __name__ == "__main__":
    main()

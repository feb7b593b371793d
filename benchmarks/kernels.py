"""What fake quantization and observing cost, against one plain torch operation on the same tensor.

    python benchmarks/kernels.py            (or: make bench)

Every ratio is measured in one process, the candidates taking turns; each figure is the median of many runs.
Timings of a busy machine mean nothing: run it alone.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable

import torch

from detent.numerics import IntGrid, PerChannel, QParams, Scheme, native
from detent.observers import OBSERVERS
from detent.quantizers import QUANTIZERS, Quantizer
from timing import medians

SHAPE = (16, 64, 56, 56)
Function = Callable[[torch.Tensor], torch.Tensor]
LIMITS = {
    "eager fixed": 2.5,
    "eager lsq": 2.5,
    "compiled fixed": 1.5,
    "compiled lsq": 1.5,
    "observe minmax": 1.3,
    "observe percentile": 2.5,
    "observe mse": 2.5,
    "observe kl": 2.5,
    "observe pow2_sse": 2.5,
}


def calibrated(name: str, scheme: Scheme, x: torch.Tensor) -> Quantizer:
    quantizer = QUANTIZERS[name](scheme, x.shape, role="activation")
    quantizer.initialize(QParams.symmetric(torch.full(quantizer.scale_shape, 0.02)))
    return quantizer


def quantizer_ratios(rounds: int) -> dict[str, float]:
    """Forward and backward of `fixed` and `lsq`, eager and compiled, relative to those of torch.relu.

    Compiled code brings a second pool of threads into the process, which slows the eager ReLU beside it; it is
    compared with the faster of that ReLU and the one that was measured before anything was compiled.
    """
    x, gradient = torch.randn(SHAPE, requires_grad=True), torch.randn(SHAPE)
    per_tensor, per_channel = Scheme(IntGrid(8)), Scheme(IntGrid(8), granularity=PerChannel(1))
    modules: dict[str, Function] = {name: calibrated(name, per_tensor, x) for name in ("fixed", "lsq")}
    # relu itself is taken uncompiled: Inductor's own relu is ten times slower here, which would flatter us.
    compiled: dict[str, Function] = {name: torch.compile(module, fullgraph=True) for name, module in modules.items()}
    modules["lsq per channel"] = calibrated("lsq", per_channel, x)
    modules["chain of torch ops"] = Chain()

    def step(function: Function) -> Callable[[], None]:
        def run() -> None:
            x.grad = None
            function(x).backward(gradient)

        return run

    def measure(functions: dict[str, Function]) -> dict[str, float]:
        steps = {name: step(function) for name, function in {"relu": torch.relu, **functions}.items()}
        return medians(steps, rounds, warm_up=2, burst=4)

    eager, fused = measure(modules), measure(compiled)
    relu = min(eager["relu"], fused["relu"])
    ratios = {f"eager {name}": eager[name] / eager["relu"] for name in modules}
    return {**ratios, **{f"compiled {name}": fused[name] / relu for name in compiled}}


class Chain(torch.nn.Module):
    """LSQ as it is usually written, for comparison."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = torch.nn.Parameter(torch.tensor(0.02))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        value = x / self.scale
        return (value + (value.round() - value).detach()).clamp(-128, 127) * self.scale


def observer_ratios(rounds: int) -> dict[str, float]:
    """One batch observed, relative to torch.aminmax (minmax) or torch.histc with as many bins (histogram kinds)."""
    x = torch.randn(SHAPE)
    plain = Scheme(IntGrid(8))
    power = Scheme(IntGrid(8), scale="power_of_two")
    observers = {name: OBSERVERS[name](power if name == "pow2_sse" else plain) for name in OBSERVED}
    candidates: dict[str, Callable[[], object]] = {
        "aminmax": lambda: torch.aminmax(x),
        "histc": lambda: torch.histc(x, bins=8192),
    }
    for name, observer in observers.items():
        candidates[name] = lambda observer=observer: observer.observe(x)
    found = medians(candidates, rounds, warm_up=2, burst=4)
    return {f"observe {name}": found[name] / found["aminmax" if name == "minmax" else "histc"] for name in observers}


OBSERVED = ("minmax", "percentile", "mse", "kl", "pow2_sse")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--json", action="store_true", help="print JSON")
    arguments = parser.parse_args()
    ratios = {
        **quantizer_ratios(arguments.rounds),
        **observer_ratios(max(10, arguments.rounds // 3)),
    }
    if arguments.json:
        print(json.dumps({name: round(ratio, 3) for name, ratio in ratios.items()}, indent=2))
        return
    print(
        f"float32 {'x'.join(map(str, SHAPE))}, {torch.get_num_threads()} threads, torch {torch.__version__}, ", end=""
    )
    print("compiled kernels" if native.library() else "no C compiler: plain torch operations")
    for name, ratio in ratios.items():
        limit = f"   limit {LIMITS[name]}" if name in LIMITS else ""
        print(f"{name:28s} {ratio:6.2f}x{limit}{'   EXCEEDED' if ratio > LIMITS.get(name, ratio) else ''}")


if __name__ == "__main__":
    main()

"""What deploying and verifying cost: CPU seconds of `deploy` over those of the float model's `torch.onnx.export` (goal:
at most 3), and the peak memory of `verify` over that of the float model and its activations (goal: at most 3).

    python benchmarks/deploy_costs.py [--backend onnxruntime] [NAME ...]

Each architecture runs in a process of its own, with random weights and one thread. Names are `torchvision:resnet50`,
`timm:vit_tiny_patch16_224`: the packages must be installed. Linux only: the peak is read from /proc.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import io
import json
import platform
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

DEFAULT = (
    "torchvision:resnet50",
    "torchvision:efficientnet_b0",
    "torchvision:convnext_tiny",
    "torchvision:vit_b_16",
    "torchvision:swin_t",
    "timm:mobilevit_xxs",
    "timm:vit_tiny_patch16_224",
)
SIZE = 224


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", default=DEFAULT, metavar="NAME")
    parser.add_argument("--backend", default="onnxruntime")
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.one:
        print(json.dumps(measure(given.names[0], given.backend)))
        return
    print(f"{cpu()}, {given.backend}, {SIZE} x {SIZE}, one thread")
    print(
        f"{'':32}{'export s':>10}{'deploy s':>10}{'ratio':>8}{'verify s':>10}{'float MB':>10}{'peak MB':>9}{'ratio':>8}"
    )
    for name in given.names:
        command = [sys.executable, __file__, "--one", "--backend", given.backend, name]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
        if done.returncode:
            print(f"{name:32} failed")
            continue
        seen = json.loads(done.stdout.splitlines()[-1])
        times, memory = seen["deploy"] / seen["export"], seen["peak"] / seen["float"]
        print(
            f"{name:32}{seen['export']:10.1f}{seen['deploy']:10.1f}{times:8.2f}{seen['verify']:10.1f}"
            f"{seen['float'] / 2**20:10.0f}{seen['peak'] / 2**20:9.0f}{memory:8.2f}",
            flush=True,
        )


def measure(name: str, backend: str) -> dict[str, float]:
    import torch
    from benchmarks.architecture_list import torchvision_models

    import detent

    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    torch.manual_seed(0)
    package, _, architecture = name.partition(":")
    models = torchvision_models()  # timm imports it too
    make = models if package == "torchvision" else importlib.import_module(package)
    model = (getattr(make, architecture) if package == "torchvision" else lambda: make.create_model(architecture))()
    model.eval()
    x = torch.randn(1, 3, SIZE, SIZE)
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
        export = seconds(lambda: torch.onnx.export(model, (x,), f"{folder}/float.onnx", verbose=False))[0]
        prepared = detent.prepare(model, (x,), backend=backend, recipe="ptq")
        detent.calibrate(prepared, [(x,)])
        deploy, artifact = seconds(lambda: detent.deploy(prepared, f"{folder}/deployed"))
        before = status("VmRSS")
        Path("/proc/self/clear_refs").write_text("5")  # the peak starts again from here
        verify = seconds(lambda: artifact.verify([(x,)]))[0]
        peak = status("VmHWM") - before
    return {"export": export, "deploy": deploy, "verify": verify, "peak": peak, "float": float_bytes(model, x)}


def float_bytes(model: Any, x: Any) -> int:
    """Of the model's parameters, and of what its layers give."""
    import torch

    total = sum(each.numel() * each.element_size() for each in (*model.parameters(), *model.buffers()))

    def count(_module: Any, _inputs: Any, output: Any) -> None:
        nonlocal total
        total += output.numel() * output.element_size() if isinstance(output, torch.Tensor) else 0

    for module in model.modules():
        if not list(module.children()):
            module.register_forward_hook(count)
    with torch.no_grad():
        model(x)
    return total


def seconds(run: Callable[[], Any]) -> tuple[float, Any]:
    """Of the CPU: a machine may be busy with other things."""
    start = time.process_time()
    result = run()
    return time.process_time() - start, result


def status(field: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * int(next(line for line in lines if line.startswith(field)).split()[1])


def cpu() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


if __name__ == "__main__":
    main()

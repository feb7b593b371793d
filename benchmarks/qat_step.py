"""What quantization-aware training costs, against the float model's own step.

    python benchmarks/qat_step.py    [--network resnet18] [--backend onnxruntime] [--strategy 0] [--rounds 9]
                                    [--compile] [--json]

16x3x112x112, LSQ, per-channel weights and activations at every place the backend asks for, batch norms by the default
strategy of a network that is trained, or `--strategy`. Float and prepared steps
take turns in one process; figures are medians. Run it alone on the machine.
"""

from __future__ import annotations

import argparse
import gc
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn

from timing import medians

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import detent
from detent.zoo import mobilenet_v2, vit_small
from tests.models import resnet18

NETWORKS = {
    "resnet18": resnet18,
    "mobilenet_v2": mobilenet_v2,
    "vit_tiny": lambda: vit_small(dim=192, heads=3, image=112),
}
LIMITS = {
    "train step, eager": 1.1,
    "train step, compiled": 1.05,
    "saved for backward": 1.55,
    "saved for backward, as codes": 0.75,
    "saved for backward, as codes and residues": 0.75,
    "calibrate 8 batches": 1.05,
    "prepare, seconds": 1.0,
}


def training_step(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> Callable[[], None]:
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)

    def run() -> None:
        optimizer.zero_grad(set_to_none=True)
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()

    return run


def settle_statistics(model: nn.Module, x: torch.Tensor) -> None:
    """Batch norms that have seen data: with fresh ones, training clips nearly all that calibration measured."""
    norms = [module for module in model.modules() if isinstance(module, nn.BatchNorm2d)]
    for norm in norms:
        norm.momentum = None  # the plain mean
    with torch.no_grad():
        model(x)
    for norm in norms:
        norm.momentum = 0.1


def saved_bytes(model: nn.Module, x: torch.Tensor) -> int:
    """Bytes of the distinct storages that autograd keeps, parameters not counted."""
    own = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    own |= {buffer.untyped_storage().data_ptr() for buffer in model.buffers()}
    kept: dict[int, int] = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        out = model(x)
    del out
    return sum(kept.values())


def coded_bytes(prepared: nn.Module, x: torch.Tensor, *, exact: bool) -> int:
    """The same with codes kept. What hooks have packed are Python objects, so they can be counted as such."""
    before = live_storages()
    with detent.compress_saved_activations(prepared, exact=exact):
        out = prepared(x)
    after = live_storages()
    kept = sum(size for pointer, size in after.items() if pointer not in before)
    return kept - out.untyped_storage().nbytes()


def live_storages() -> dict[int, int]:
    gc.collect()
    tensors = [item for item in gc.get_objects() if isinstance(item, torch.Tensor)]
    return {tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes() for tensor in tensors}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--network", default="resnet18", choices=NETWORKS)
    parser.add_argument("--backend", default="onnxruntime")
    parser.add_argument("--strategy", type=int, choices=(-1, 0, 1, 2, 3, 4), help="of batch norms")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--compile", action="store_true", help="measure compiled steps too (minutes)")
    parser.add_argument("--json", action="store_true", help="print JSON")
    arguments = parser.parse_args()
    torch.manual_seed(0)
    model = NETWORKS[arguments.network]().train()
    x, y = torch.randn(16, 3, 112, 112), torch.randint(0, 1000, (16,))
    settle_statistics(model, x)
    start = time.process_time()
    recipe = detent.Recipe.named("lsq").replace(batch_norm={"strategy": arguments.strategy})
    prepared = detent.prepare(model, (x[:1],), backend=arguments.backend, recipe=recipe)
    figures = {"prepare, seconds": time.process_time() - start}
    batches = [torch.randn(16, 3, 112, 112) for _ in range(8)]

    def forwards() -> None:
        model.eval()
        with torch.no_grad():
            for batch in batches:
                model(batch)
        model.train()

    found = medians(
        {"float": forwards, "calibrate": lambda: detent.calibrate(prepared, batches)},
        max(3, arguments.rounds // 3),
        warm_up=1,
    )
    figures["calibrate 8 batches"] = found["calibrate"] / found["float"]
    figures["saved for backward"] = saved_bytes(prepared, x) / saved_bytes(model, x)
    figures["saved for backward, as codes"] = coded_bytes(prepared, x, exact=True) / saved_bytes(model, x)
    residues = coded_bytes(prepared, x, exact=False) / saved_bytes(model, x)
    figures["saved for backward, as codes and residues"] = residues
    found = medians(
        {"float": training_step(model, x, y), "prepared": training_step(prepared, x, y)}, arguments.rounds, warm_up=2
    )
    figures["train step, eager"] = found["prepared"] / found["float"]
    if arguments.compile:
        compiled = {"float": torch.compile(model), "prepared": torch.compile(prepared)}
        found = medians({name: training_step(m, x, y) for name, m in compiled.items()}, arguments.rounds, warm_up=2)
        figures["train step, compiled"] = found["prepared"] / found["float"]
    if arguments.json:
        print(json.dumps({name: round(value, 3) for name, value in figures.items()}, indent=2))
        return
    threads = torch.get_num_threads()
    print(f"{arguments.network} 16x3x112x112, {arguments.backend}, lsq, {threads} threads, torch {torch.__version__}")
    for name, value in figures.items():
        print(f"{name:42s} {value:6.2f}   limit {LIMITS[name]}{'   EXCEEDED' if value > LIMITS[name] else ''}")


if __name__ == "__main__":
    main()

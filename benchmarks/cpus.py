"""What it costs to be the same on every CPU: accuracy of W8A8 on the engines, with and without bounded pairs.

    python benchmarks/cpus.py [resnet20 resnet56 mobilenet_v2 efficientnet_lite0] [--backends onnxruntime openvino]
    python benchmarks/cpus.py --time [resnet20 ...]

For each network and backend: the simulation with whole 8-bit weights (`cpu="vnni"`), which is what a CPU with VNNI
computes; with plain 7-bit weights; and as Detent deploys by default, simulated and on the engine on this CPU. Beside
them NNCF with overflow_fix and quantize_static with reduce_range, on the same engines, data and CPU, where they are
installed. The difference is to whole 8 bits, image by image, with its standard error; SQNR is of the logits against the
float network's. Calibrated on 1,024 images of CIFAR-10, or 128 of ImageNet.

With `--time`: latency of the default file and the time that deploying takes, to those of whole 8-bit weights,
as ratios of runs that take turns in one process.
"""

from __future__ import annotations

import argparse
import importlib.util
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor

import detent
from detent import cpus
from detent.recipes import BUILTIN, Recipe
from detent.targets.engines import ENGINES, compare_latency
from ptq_data import Task, load, missing
from ptq_peers import nncf_on_openvino, onnxruntime_static
from timing import medians

TASKS = ("resnet20", "resnet56", "mobilenet_v2", "efficientnet_lite0")
PLAIN = BUILTIN["ptq"].recipe.to_dict()
SEVEN = {**PLAIN, "name": "seven", "weight": {"quantizer": "fixed", "bits": 7, "narrow": False}}


def prepared(task: Task, backend: str, recipe: dict[str, Any], cpu: str | None = None) -> Any:
    example = (task.calibration[0][:2],)
    model = detent.prepare(task.net, example, backend=backend, recipe=Recipe.from_dict(recipe), cpu=cpu).eval()
    detent.calibrate(model, task.calibration)
    return model


def deployed(model: Any) -> detent.Artifact:
    return detent.deploy(model, tempfile.mkdtemp() + "/net")


def on_engine(model: Any) -> Callable[[Tensor], Any]:
    artifact = deployed(model)
    engine = ENGINES[artifact.manifest["engine"]].load(artifact)
    (name,) = artifact.graph.inputs
    return lambda x: next(iter(engine.run({name: x.numpy()}).values()))


def seven(task: Task) -> dict[str, Any]:
    """7 bits where engines add products in pairs: depthwise kernels do not."""
    alone = [n for n, m in task.net.named_modules() if isinstance(m, torch.nn.Conv2d) and m.groups == m.in_channels > 1]
    return {**SEVEN, "rules": [{"match": {"name": name}, "weight": {"bits": 8}} for name in alone]}


def rows(task: Task, backend: str) -> Iterator[tuple[str, Callable[[Tensor], Any]]]:
    yield "8 bits, simulated", prepared(task, backend, PLAIN, "vnni")
    yield "7 bits, simulated", prepared(task, backend, seven(task))
    default = prepared(task, backend, PLAIN)
    yield "default, simulated", default
    yield f"default, {backend} on this CPU", on_engine(default)
    if backend == "onnxruntime":
        yield "quantize_static, reduce_range", onnxruntime_static(task, per_channel=True, reduce_range=True)
    if backend == "openvino" and importlib.util.find_spec("nncf"):
        yield "NNCF, overflow_fix", nncf_on_openvino(task)


@torch.no_grad()
def logits(task: Task, model: Callable[[Tensor], Any], batch: int = 100) -> Tensor:
    return torch.cat([torch.as_tensor(model(part)) for part in task.images.split(batch)])


def measure(task: Task, backend: str) -> None:
    wanted = logits(task, task.net)
    print(f"{task.name}, {backend}: float {task.accuracy(wanted.argmax(1)):.2f}", flush=True)
    whole = None
    for name, model in rows(task, backend):
        found = logits(task, model)
        whole = found if whole is None else whole
        chosen, before = found.argmax(1), whole.argmax(1)
        apart = task.accuracy(chosen) - task.accuracy(before)
        noise = 10 * torch.log10(wanted.square().sum() / (found - wanted).square().sum())
        spread = task.standard_error(chosen, before)
        print(f"  {name:32} {task.accuracy(chosen):6.2f}  {apart:+.2f} +- {spread:.2f}  {noise:5.2f} dB", flush=True)


def measure_time(task: Task, backend: str) -> None:
    models = {"default": prepared(task, backend, PLAIN), "8 bits": prepared(task, backend, PLAIN, "vnni")}
    taken = medians({name: partial(deployed, model) for name, model in models.items()}, 5, warm_up=1)
    artifacts = [deployed(model) for model in models.values()]
    default, whole = (ENGINES[each.manifest["engine"]].load(each) for each in artifacts)
    (name,) = artifacts[0].graph.inputs
    latency = compare_latency(default, whole, {name: task.images[:1].numpy()}, repeats=200)
    print(
        f"{task.name}, {backend}: latency {latency.ratio:.3f} (medians {latency.median_ratio:.3f}), "
        f"deploying {taken['default'] / taken['8 bits']:.3f} of that of whole 8-bit weights",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tasks", nargs="*", default=TASKS)
    parser.add_argument("--backends", nargs="+", default=("onnxruntime", "openvino"))
    parser.add_argument("--images", type=int)
    parser.add_argument("--time", action="store_true", help="latency and deploying, not accuracy")
    asked = parser.parse_args()
    print(f"CPU: {cpus.here().about}")
    for name in asked.tasks:
        why = missing(name)
        if why is not None:
            print(f"{name}: skipped: {why}")
            continue
        task = load(name, images=asked.images)
        for backend in asked.backends:
            (measure_time if asked.time else measure)(task, backend)


if __name__ == "__main__":
    main()

"""What it costs to be the same on every CPU: accuracy of W8A8 on the engines, with and without bounded pairs.

    python benchmarks/cpus.py [resnet20 resnet56 mobilenet_v2 efficientnet_lite0] [--backends onnxruntime openvino]
    python -m tools.lesser_cpu avx2 python benchmarks/cpus.py ...
    python benchmarks/cpus.py --draws 5 --rows "8 bits" default
    python benchmarks/cpus.py mobilenet_v2 efficientnet_lite0 --center --rows "8 bits" default
    python benchmarks/cpus.py --time [resnet20 ...]

For each network and backend, on the engine on the CPU at hand: full 8-bit weights (`cpu="vnni"`), plain 7-bit weights,
what Detent deploys by default, and the other tool on the same engine and calibration data: quantize_static with
reduce_range, NNCF with overflow_fix where it is installed. Full 8 bits saturate on a CPU without VNNI: their answers
are those of an earlier run on a CPU with it, else of the simulation. Files and answers are kept in `--keep`, and a row
whose answers are there is not run again: run on a CPU with VNNI first (`--rows "8 bits" default`), then on one without.

The protocol, fixed before any of its numbers was seen. Calibration: 1,024 training images of CIFAR-10, or 128 of
ImageNet (center crops). Accuracy: top-1 on the 10,000 test images of CIFAR-10; on 372 images of ImageNet, which are too
few to decide on half a point, each in ten views (the crops at corners and center, and their mirror images), the mean
over views. Differences are paired, image by image; an image with ten views counts once in the standard error. Limits:
the default is at most 0.05 points (CIFAR-10) or one standard error of the difference (ImageNet) below full 8 bits, and
not below the other tool. SQNR is of the logits against those of the float network.

One file is one throw of the dice: codes that round otherwise move a hundredth of the test images. `--draws` repeats a
row on as many draws of calibration images and compares the means over them, image by image; the spread is the standard
deviation of a difference over the draws. `--center` judges each image of ImageNet by its center crop alone.

With `--time`: latency of the default file and the time that deploying takes, to those of full 8-bit weights, as ratios
of runs that take turns in one process.
"""

from __future__ import annotations

import argparse
import importlib.util
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

import detent
from detent import cpus
from detent.recipes import BUILTIN, Recipe
from detent.targets.engines import ENGINES, compare_latency
from ptq_data import Task, calibration_images, load, missing
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


def on_engine(artifact: detent.Artifact) -> Callable[[Tensor], Any]:
    engine = ENGINES[artifact.manifest["engine"]].load(artifact)
    (name,) = artifact.graph.inputs
    return lambda x: next(iter(engine.run({name: x.numpy()}).values()))


def seven(task: Task) -> dict[str, Any]:
    """7 bits where engines add products in pairs: depthwise kernels do not."""
    alone = [n for n, m in task.net.named_modules() if isinstance(m, torch.nn.Conv2d) and m.groups == m.in_channels > 1]
    return {**SEVEN, "rules": [{"match": {"name": name}, "weight": {"bits": 8}} for name in alone]}


ROWS = ("8 bits", "7 bits", "default", "other tool")


def model_of(row: str, task: Task, backend: str, folder: Path) -> Callable[[Tensor], Any] | None:
    """What a row runs; None without the tool. Its file is kept in `folder`."""
    if row == "other tool":
        if backend == "onnxruntime":
            return onnxruntime_static(task, per_channel=True, reduce_range=True)
        return nncf_on_openvino(task) if importlib.util.find_spec("nncf") else None
    file = folder / row
    simulated = row == "8 bits" and cpus.here().saturates
    if simulated or not file.exists():
        recipe, cpu = (seven(task) if row == "7 bits" else PLAIN), ("vnni" if row == "8 bits" else None)
        model = prepared(task, backend, recipe, cpu)
        if simulated:
            return model  # type: ignore[no-any-return]
        detent.deploy(model, file)
    return on_engine(detent.Artifact.load(file))


@torch.no_grad()
def logits(task: Task, model: Callable[[Tensor], Any], batch: int = 100) -> Tensor:
    return torch.cat([torch.as_tensor(model(part)) for part in task.images.split(batch)])


def kept(file: Path, task: Task, build: Callable[[], Callable[[Tensor], Any] | None]) -> Tensor | None:
    """The answers in a file, or those of the model, for the file."""
    if not file.exists():
        model = build()
        if model is None:
            return None
        np.save(file, logits(task, model).numpy())
    return torch.from_numpy(np.load(file))


def measure(task: Task, backend: str, folder: Path, rows: Sequence[str], draw: int = 0) -> dict[str, Tensor]:
    """What each row answered; its accuracy is printed."""
    float_file = folder / f"{task.name}-{len(task.images)}-float.npy"
    folder = folder / (f"{task.name}-{len(task.images)}-{backend}" + (f"-{draw}" if draw else ""))
    folder.mkdir(parents=True, exist_ok=True)
    wanted = kept(float_file, task, lambda: task.net)
    assert wanted is not None
    print(f"{task.name}, {backend}: float {task.accuracy(wanted.argmax(1)):.2f}", flush=True)
    found: dict[str, Tensor] = {}
    for row in ROWS:
        file = folder / f"{row} on {cpus.here().name}.npy"
        if row == "8 bits" and cpus.here().saturates:
            file = next(iter(each for each in folder.glob("8 bits on *.npy") if each != file), file)
        if row not in rows and not file.exists():
            continue
        answers = kept(file, task, partial(model_of, row, task, backend, folder))
        if answers is None:
            continue
        found[row] = answers
        noise = 10 * torch.log10(wanted.square().sum() / (answers - wanted).square().sum())
        same = 100 * float((answers.argmax(1) == wanted.argmax(1)).double().mean())
        line = f"  {file.stem:24} {task.accuracy(answers.argmax(1)):6.2f}"
        if row != "8 bits" and "8 bits" in found:
            line += f"  {difference(task, answers, found['8 bits'])}"
        print(f"{line}  {noise:5.2f} dB, as float {same:.2f}", flush=True)
    if "default" in found and "other tool" in found:
        print(f"  default to other tool    {difference(task, found['default'], found['other tool'])}", flush=True)
    return {row: answers.argmax(1) for row, answers in found.items()}


def measure_draws(task: Task, backend: str, folder: Path, rows: Sequence[str], draws: int) -> None:
    found: list[dict[str, Tensor]] = []
    for draw in range(draws):
        if draws > 1:
            print(f"draw {draw}:", flush=True)
        drawn = replace(task, calibration=calibration_images(task.name, draw)) if draw else task
        found.append(measure(drawn, backend, folder, rows, draw))
    if draws == 1:
        return
    for row in (each for each in ROWS if each != "8 bits" and all({each, "8 bits"} <= set(one) for one in found)):
        apart = torch.stack([right(task, one[row]) - right(task, one["8 bits"]) for one in found])  # draws, images
        error = apart.mean(0).std() / apart.shape[1] ** 0.5
        print(
            f"{task.name}, {backend}, {draws} draws: {row} {100 * apart.mean():+.3f} +- {100 * error:.3f} of 8 bits, "
            f"spread {100 * apart.mean(1).std():.2f}",
            flush=True,
        )


def right(task: Task, answers: Tensor) -> Tensor:
    """The share of an image's views that are classified right."""
    return (answers == task.labels).double().reshape(-1, task.views).mean(1)


def difference(task: Task, one: Tensor, other: Tensor) -> str:
    ours, theirs = one.argmax(1), other.argmax(1)
    return f"{task.accuracy(ours) - task.accuracy(theirs):+.2f} +- {task.standard_error(ours, theirs):.2f}"


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
    parser.add_argument("--rows", nargs="+", choices=ROWS, default=ROWS)
    parser.add_argument("--keep", type=Path, default=Path("out/cpus"), help="folder of files and answers")
    parser.add_argument("--draws", type=int, default=1, help="draws of calibration images, at most 9")
    parser.add_argument("--center", action="store_true", help="one view of each image of ImageNet in place of ten")
    parser.add_argument("--time", action="store_true", help="latency and deploying, not accuracy")
    asked = parser.parse_args()
    print(f"CPU: {cpus.here().about}")
    for name in asked.tasks:
        why = missing(name)
        if why is not None:
            print(f"{name}: skipped: {why}")
            continue
        task = load(name, images=asked.images, ten_views=not (asked.time or asked.center))
        for backend in asked.backends:
            if asked.time:
                measure_time(task, backend)
            else:
                measure_draws(task, backend, asked.keep, asked.rows, asked.draws)


if __name__ == "__main__":
    main()

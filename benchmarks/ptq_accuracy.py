"""Top-1 after post-training quantization, against the float network, on real weights and images.

    python benchmarks/ptq_accuracy.py    [--only resnet20] [--rows W4A8] [--steps 2000] [--images 10000] [--json]

CIFAR-10 ResNets: calibrated on 1,024 training images, measured on the 10,000 test images. ImageNet MobileNetV2:
calibrated on rows 0..127 of the sample, measured on rows 128..499. A language model: its perplexity (ptq_language.py).
Where data and weights come from: ptq_data.py. The column "agree" is the share of images that get the same answer as
from the float network, and "+-" the standard error of the loss, image by image: both say more than the accuracy on a
few hundred images. `--costs` adds memory and time of the algorithms themselves. A row over its limit ends the run with
exit code 1.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from torch import Tensor

import detent
import ptq_costs
import ptq_language
from detent.recipes import Recipe
from ptq_data import DATA, Task, load, missing
from ptq_peers import PEERS

W4 = {"bits": 4, "granularity": "per_channel"}
PER_TENSOR = {"granularity": "per_tensor"}


@dataclass(frozen=True)
class Row:
    """One line of the table: how a network is quantized, and how many points it may lose (None: no promise)."""

    name: str
    backend: str
    recipe: str
    limit: float | None
    weight: dict[str, Any] | None = None
    activation: dict[str, Any] | None = None

    def request(self, steps: int) -> Recipe:
        data = Recipe.named(self.recipe).to_dict()
        data["weight"] = {**data.get("weight", {}), **(self.weight or {})}
        data["activation"] = {**data.get("activation", {}), **(self.activation or {})}
        for algorithm in data.get("algorithms", []):
            if algorithm["name"] in ("adaround", "brecq", "qdrop"):
                algorithm["options"] = {"steps": steps}
        return Recipe.from_dict(data)


CIFAR = (
    Row("W8A8", "onnxruntime", "ptq", 0.15),
    Row("W8A8", "openvino", "ptq", 0.15),
    Row("W8A8", "tensorrt", "ptq", 0.15),
    Row("W8A8 powers of two", "vitis", "ptq", 0.5),
    Row("W4A8", "academic", "ptq", None, weight=W4),
    Row("W4A8", "academic", "adaround", 0.7, weight=W4),
    Row("W4A8", "academic", "gptq", None, weight=W4),
    Row("W4A4", "academic", "mse", None, weight=W4, activation={"bits": 4}),
    Row("W4A4", "academic", "brecq", 2.5, weight=W4, activation={"bits": 4}),
    Row("W4A4", "academic", "qdrop", 2.5, weight=W4, activation={"bits": 4}),
)
# Observers were chosen by the noise of the scores on calibration images (docs/algorithms.md); the kind of equalization
# is chosen by the algorithm itself, on the part of them that it holds back. Plain ptq takes minimum and maximum.
IMAGENET = (
    Row("W8A8 per tensor", "onnxruntime", "ptq", None, weight=PER_TENSOR),
    Row("W8A8 per tensor", "onnxruntime", "equalize", 2.0, weight=PER_TENSOR),
)
LANGUAGE = "stories260k"
TASKS: dict[str, tuple[Row, ...]] = {"resnet20": CIFAR, "resnet56": CIFAR, "mobilenet_v2": IMAGENET}


def quantized(task: Task, row: Row, steps: int) -> Callable[[Tensor], Any]:
    prepared = detent.prepare(task.net, (task.calibration[0][:2],), backend=row.backend, recipe=row.request(steps))
    detent.calibrate(prepared, task.calibration)
    return prepared.eval()


def measured(task: Task, wanted: str, steps: int) -> Iterator[dict[str, Any]]:
    """A line for every row, ours and those of others, whose words contain `wanted`."""
    own = task.predictions(task.net)
    yield {"task": task.name, "row": "float", "by": "", "top1": task.accuracy(own), "limit": None}

    def line(name: str, by: str, limit: float | None, make: Callable[[], Callable[[Tensor], Any]]) -> dict[str, Any]:
        start = time.perf_counter()
        model = make()
        seconds = time.perf_counter() - start
        found = task.predictions(model)
        return {
            "task": task.name,
            "row": name,
            "by": by,
            "top1": task.accuracy(found),
            "lost": task.accuracy(own) - task.accuracy(found),
            "agree": 100 * float((found == own).double().mean()),
            "error": task.standard_error(own, found),
            "limit": limit,
            "seconds": seconds,
        }

    for row in TASKS[task.name]:
        if wanted not in f"{row.name} {row.backend} / {row.recipe}":
            continue
        yield line(row.name, f"{row.backend} / {row.recipe}", row.limit, lambda row=row: quantized(task, row, steps))
    for name, (module, make) in PEERS.items():
        per_channel = task.name != "mobilenet_v2"
        peer = "W8A8" if per_channel else "W8A8 per tensor"
        if importlib.util.find_spec(module) is not None and wanted in f"{peer} {name}":
            yield line(peer, name, None, lambda make=make, c=per_channel: make(task, per_channel=c))


def shown(line: dict[str, Any]) -> str:
    text = f"{line['task']:<13}{line['row']:<20}{line['by']:<27}{line['top1']:6.2f}"
    if "lost" in line:
        limit = "" if line["limit"] is None else f"  limit {line['limit']:.2f}"
        text += f"  {-line['lost']:+6.2f} +- {line['error']:4.2f}  agree {line['agree']:6.2f}"
        text += f"  {line['seconds']:6.0f} s{limit}"
        text += "" if kept(line) else "  MISSED"
    return text


def kept(line: dict[str, Any]) -> bool:
    return line["limit"] is None or line["lost"] <= line["limit"]


def main() -> int:
    parser = argparse.ArgumentParser(description="accuracy after post-training quantization")
    names = (*TASKS, LANGUAGE)
    parser.add_argument("--only", choices=names, action="append", help="one network; may be given more than once")
    parser.add_argument(
        "--rows", default="", help="only rows whose words contain this text, as 'W4A8 academic / adaround'"
    )
    parser.add_argument("--steps", type=int, default=2000, help="of learned rounding, for each layer or block")
    parser.add_argument("--images", type=int, help="measure on fewer images")
    parser.add_argument("--calibration", type=int, help="calibrate on fewer images")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--costs", action="store_true", help="also memory and time of AdaRound and GPTQ (ptq_costs.py)")
    given = parser.parse_args()
    lines = []
    for name in given.only or names:
        if name == LANGUAGE:
            _print_language(given.rows)
            continue
        reason = missing(name)
        if reason:
            print(f"{name}: skipped, {reason}", file=sys.stderr)
            continue
        task = load(name, calibration=given.calibration, images=given.images)
        for line in measured(task, given.rows, given.steps):
            lines.append(line)
            print(json.dumps(line) if given.json else shown(line), flush=True)
    costs = list(ptq_costs.measured(given.steps)) if given.costs else []
    for text, _ in costs:
        print(text)
    return 0 if all(kept(line) for line in lines) and all(good for _, good in costs) else 1


def _print_language(wanted: str) -> None:
    if not (DATA / LANGUAGE).exists():
        print(f"{LANGUAGE}: skipped, no {DATA / LANGUAGE}: set DETENT_DATA", file=sys.stderr)
        return
    for text in ptq_language.measured(DATA, wanted):
        print(text, flush=True)


if __name__ == "__main__":
    raise SystemExit(main())

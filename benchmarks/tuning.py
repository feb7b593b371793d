"""`detent.tune` beside NNCF's `quantize_with_accuracy_control`: the same network, data, engine and target.

    python benchmarks/tuning.py [mobilenet_v2 mobilenet_v1 resnet20 ...] [--drop 0.5] [--tools detent nncf]

Weights have one scale a tensor in both, which costs MobileNets much accuracy, on OpenVINO. The first half of the test
images is what both tune on; accuracy is shown on it and on the other half, which neither saw. Time is CPU time of the
process with one thread (`OMP_NUM_THREADS=1`), so that other work on the machine does not count. `nncf` has NNCF's
defaults, `nncf_portable` its `OverflowFix.ENABLE`: without it, integers differ on CPUs without VNNI, as they do not for
what Detent deploys.
"""

from __future__ import annotations

import argparse
import importlib.util
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

import detent
from detent import cpus
from detent.evaluation import OnEngine
from detent.recipes import BUILTIN, TensorRequest
from detent.targets.engines import ENGINES
from detent.tuning import accuracy
from ptq_data import Task, load, missing

BATCH = 31


def by_detent(task: Task, drop: float) -> tuple[Callable[[Tensor], Any], str]:
    recipe = BUILTIN["ptq"].recipe.replace(weight=TensorRequest(quantizer="fixed", granularity="per_tensor"))
    batches = list(zip(task.images.split(BATCH), task.labels.split(BATCH), strict=True))
    tuned = detent.tune(
        task.net,
        task.calibration,
        backend="openvino",
        metric=accuracy(batches),
        drop=drop,
        folder=tempfile.mkdtemp() + "/net",
        recipe=recipe,
    )
    artifact = tuned.artifact
    assert artifact.prepared is not None
    return OnEngine(artifact.prepared, ENGINES["openvino"].load(artifact), artifact.graph.inputs), str(tuned)


def by_nncf(task: Task, drop: float, *, portable: bool) -> tuple[Callable[[Tensor], Any], str]:
    import nncf
    import openvino
    from nncf.quantization.advanced_parameters import (
        AdvancedQuantizationParameters,
        OverflowFix,
        QuantizationParameters,
    )

    def validate(model: Any, batches: Any) -> tuple[float, None]:
        given = [(model(images)[0], labels) for images, labels in batches]
        right = sum(int((torch.as_tensor(scores).argmax(1) == labels).sum()) for scores, labels in given)
        return 100 * right / sum(len(labels) for _, labels in given), None

    batches = list(zip(task.images.split(BATCH), task.labels.split(BATCH), strict=True))
    tuned = nncf.quantize_with_accuracy_control(
        openvino.convert_model(task.net, example_input=task.calibration[0][:2]),
        calibration_dataset=nncf.Dataset(task.calibration, lambda batch: batch.numpy()),
        validation_dataset=nncf.Dataset(batches, lambda batch: (batch[0].numpy(), batch[1])),
        validation_fn=validate,
        max_drop=drop,
        drop_type=nncf.DropType.ABSOLUTE,
        subset_size=len(task.calibration),
        advanced_quantization_parameters=AdvancedQuantizationParameters(
            overflow_fix=OverflowFix.ENABLE if portable else OverflowFix.DISABLE,
            weights_quantization_params=QuantizationParameters(per_channel=False),
        ),
    )
    # As Detent's engine runs: without it, CPUs that have bfloat16 use it for what stays float.
    compiled = openvino.compile_model(tuned, "CPU", {"INFERENCE_NUM_THREADS": 1, "INFERENCE_PRECISION_HINT": "f32"})
    return lambda x: compiled(x.numpy())[0], ""


def half(task: Task, which: int) -> Task:
    middle = len(task.images) // 2
    rows = slice(middle) if which == 0 else slice(middle, None)
    return replace(task, images=task.images[rows], labels=task.labels[rows])


TOOLS = {
    "detent": by_detent,
    "nncf": partial(by_nncf, portable=False),
    "nncf_portable": partial(by_nncf, portable=True),
}


def measure(task: Task, drop: float, asked: Sequence[str]) -> None:
    seen, unseen = half(task, 0), half(task, 1)
    scores = [one.accuracy(one.predictions(task.net)) for one in (seen, unseen)]
    print(f"{task.name}: float {scores[0]:.2f}, not tuned on {scores[1]:.2f}; {drop} may be lost", flush=True)
    for name in asked:
        if name.startswith("nncf") and not importlib.util.find_spec("nncf"):
            print(f"  {name}: not installed")
            continue
        began = time.process_time(), time.perf_counter()
        model, told = TOOLS[name](seen, drop)
        taken = time.process_time() - began[0], time.perf_counter() - began[1]
        scores = [one.accuracy(one.predictions(model, BATCH)) for one in (seen, unseen)]
        print(
            f"  {name}: {scores[0]:.2f}, not tuned on {scores[1]:.2f}; {taken[0]:.0f} CPU s, {taken[1]:.0f} s",
            flush=True,
        )
        if told:
            print("    " + told.replace("\n", "\n    "), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tasks", nargs="*", default=["mobilenet_v2"])
    parser.add_argument("--drop", type=float, default=0.5)
    parser.add_argument("--images", type=int)
    parser.add_argument("--tools", nargs="+", choices=TOOLS, default=list(TOOLS))
    asked = parser.parse_args()
    print(f"CPU: {cpus.here().about}")
    torch.set_num_threads(1)
    for name in asked.tasks:
        why = missing(name)
        if why is not None:
            print(f"{name}: skipped: {why}")
            continue
        measure(load(name, images=asked.images), asked.drop, asked.tools)


if __name__ == "__main__":
    main()

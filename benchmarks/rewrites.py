"""What the rewrites of a target (`detent.targets.rewrites`) save in ONNX Runtime: a network with and without them.

    python benchmarks/rewrites.py

One thread, taking turns, medians of 60 runs; processor time, which other work on the machine changes less than the time
on the wall. And how many outputs differ between the two: a few may, where the runtime computes in float without them.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import torch
from torch import nn

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import detent
from detent.deployment import deployment_of
from detent.rewrites import float_model
from tests.models import mobilenet_v2, resnet18, unet, vit_block

RUNS = 60
NETWORKS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "ResNet-18, 224x224": (resnet18, (1, 3, 224, 224)),
    "MobileNetV2, 224x224": (mobilenet_v2, (1, 3, 224, 224)),
    "U-Net, 32 channels, 128x128": (lambda: unet(channels=32, depth=3), (1, 3, 128, 128)),
    "transformer block, 197 tokens of 384": (vit_block, (1, 197, 384)),
}


def session(model: onnx.ModelProto) -> Any:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = 1, 3
    return onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


def main() -> None:
    torch.set_num_threads(1)
    for name, (build, shape) in NETWORKS.items():
        torch.manual_seed(0)
        net, x = build().eval(), torch.randn(shape)
        prepared = detent.prepare(net, (x,), backend="onnxruntime")
        detent.calibrate(prepared, [x])
        rewritten = deployment_of(prepared).model
        prepared.backend = replace(prepared.backend, rewrites=())
        models = {
            "with": rewritten,
            "without": deployment_of(prepared).model,
            "float": float_model(rewritten),
        }
        sessions = {kind: session(model) for kind, model in models.items()}
        feed = {rewritten.graph.input[0].name: x.numpy()}
        results = {kind: one.run(None, feed)[0] for kind, one in sessions.items()}
        differing = int((results["with"] != results["without"]).sum())
        times: dict[str, list[float]] = {kind: [] for kind in sessions}
        for _ in range(RUNS):
            for kind, one in sessions.items():
                start = time.thread_time()
                one.run(None, feed)
                times[kind].append(time.thread_time() - start)
        shown = ", ".join(f"{kind} {1e3 * np.median(taken):.2f} ms" for kind, taken in times.items())
        print(f"{name}: {shown}; {differing} of {results['with'].size} outputs differ", flush=True)


if __name__ == "__main__":
    main()

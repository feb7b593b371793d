"""The exact twin against the float simulation of the same deployed ResNet-18.

    python benchmarks/twin_speed.py  [onnxruntime openvino litert tflite_micro ncnn mnn torch_x86 qnn vitis] [--json]

224x224 images, batches of 1 and 8, one thread, taking turns; medians, and what the twin takes over what a forward of
the fake-quantized model takes (limit 3). Run it alone. Exit code 1 if one is above the limit.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from timing import medians

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import detent
from detent.targets.arithmetics import ARITHMETICS
from detent.twin import Twin
from tests.models import resnet18

BACKENDS = ("onnxruntime", "openvino", "litert", "tflite_micro", "ncnn", "mnn", "torch_x86", "qnn", "vitis")
LIMIT = 3.0


def ratio_of(backend: str, prepared: Any, twin: Twin, x: Tensor) -> float:
    inputs = {next(iter(twin.graph.inputs)): x.numpy()}
    with torch.no_grad():
        found = medians({"simulation": lambda: prepared(x), "twin": lambda: twin.run(inputs)}, 5, warm_up=2)
    ratio = found["twin"] / found["simulation"]
    times = ", ".join(f"{name} {1e3 * seconds:.0f} ms" for name, seconds in found.items())
    print(f"{backend}, batch {len(x)}: {times}, ratio {ratio:.2f}", file=sys.stderr, flush=True)
    return ratio


def main() -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model, x = resnet18().eval(), torch.randn(8, 3, 224, 224)
    named = [word for word in sys.argv[1:] if word != "--json"]
    ratios = {}
    with tempfile.TemporaryDirectory() as folder:
        for backend in named or BACKENDS:
            prepared = detent.prepare(model, (x[:1],), backend=backend).eval()
            detent.calibrate(prepared, [x[:2]])
            artifact = detent.deploy(prepared, f"{folder}/{backend}")
            twin = Twin(artifact.graph, ARITHMETICS[artifact.manifest["arithmetic"]]())
            for batch in (1, 8):
                ratios[f"{backend}, batch {batch}"] = round(ratio_of(backend, prepared, twin, x[:batch]), 3)
    if "--json" in sys.argv[1:]:
        print(json.dumps(ratios, indent=2))
        return
    print(f"worst ratio {max(ratios.values()):.2f} (limit {LIMIT:g})")
    raise SystemExit(max(ratios.values()) > LIMIT)


if __name__ == "__main__":
    main()

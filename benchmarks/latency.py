"""Int8 against float32 latency of ResNet-18 in each engine that is installed.

    python benchmarks/latency.py            [onnxruntime openvino litert ncnn torch_x86]

1x3x224x224, one thread, the same engine for both, in turns of three runs behind one that does not count; fastest of 60
runs, and medians. Run it alone.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import detent
from detent.engines import ENGINES, compare_latency
from tests.models import resnet18


def main() -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model, x = resnet18().eval(), torch.randn(1, 3, 224, 224)
    with tempfile.TemporaryDirectory() as folder:
        for backend in sys.argv[1:] or ("onnxruntime", "openvino", "litert", "ncnn", "torch_x86"):
            prepared = detent.prepare(model, (x,), backend=backend)
            detent.calibrate(prepared, [x])
            artifact = detent.deploy(prepared, f"{folder}/{backend}")
            engine = ENGINES[artifact.manifest["engine"]]
            if engine.version() is None:
                print(f"{backend}: not installed")
                continue
            inputs = {next(iter(artifact.graph.inputs)): x.numpy()}
            plain = engine.load(artifact, as_float=True)
            print(f"{backend}: {compare_latency(engine.fastest(artifact), plain, inputs, repeats=60)}", flush=True)


if __name__ == "__main__":
    main()

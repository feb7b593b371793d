"""What quantizing an ONNX file costs, against onnxruntime's own quantizer on the same data.

    python benchmarks/onnx_quantize.py            [--steps 32] [--rounds 3]

ResNet-18, 1x3x224x224, min-max ranges. Both quantizers take turns in one process; wall times are the least of the
rounds. SQNR is of the outputs against the float network, both files run by onnxruntime. Run it alone on the machine.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
import warnings
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import torch
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import detent
from tests.models import resnet18

LIMIT = 1.5


class Reader(CalibrationDataReader):
    def __init__(self, batches: list[np.ndarray], name: str):
        self._left = iter([{name: batch} for batch in batches])

    def get_next(self) -> dict[str, np.ndarray] | None:
        return next(self._left, None)


def outputs(path: str, name: str, batches: list[np.ndarray]) -> np.ndarray:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    return np.concatenate([session.run(None, {name: batch})[0] for batch in batches])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    torch.manual_seed(0)
    batches = [torch.randn(1, 3, 224, 224).numpy() for _ in range(options.steps)]
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        path, theirs = f"{folder}/model.onnx", f"{folder}/theirs.onnx"
        example = (torch.from_numpy(batches[0]),)
        torch.onnx.export(resnet18().eval(), example, path, dynamo=True, external_data=False, verbose=False)
        name = onnx.load_model(path).graph.input[0].name
        times: dict[str, list[float]] = {"detent": [], "onnxruntime": []}
        for _ in range(options.rounds):
            start = time.perf_counter()
            artifact = detent.quantize(path, batches, backend="onnxruntime", folder=f"{folder}/ours")
            times["detent"].append(time.perf_counter() - start)
            start = time.perf_counter()
            quantize_static(
                path,
                theirs,
                Reader(batches, name),
                quant_format=QuantFormat.QDQ,
                per_channel=True,
                activation_type=QuantType.QUInt8,
                weight_type=QuantType.QInt8,
            )
            times["onnxruntime"].append(time.perf_counter() - start)
        test = batches[:8]
        exact = outputs(path, name, test)
        for who, file in (("detent", str(artifact.folder / "model.onnx")), ("onnxruntime", theirs)):
            noise = outputs(file, name, test) - exact
            sqnr = 10 * np.log10((exact**2).sum() / (noise**2).sum())
            print(f"{who:12} {min(times[who]):6.2f} s  SQNR {sqnr:5.2f} dB")
    ratio = min(times["detent"]) / min(times["onnxruntime"])
    print(f"ratio {ratio:.2f} (limit {LIMIT})")
    return int(ratio > LIMIT)


if __name__ == "__main__":
    sys.exit(main())

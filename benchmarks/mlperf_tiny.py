"""MLPerf Tiny's keyword spotting and image classification, quantized for LiteRT, beside the reference int8 files.

    python benchmarks/mlperf_tiny.py    [--only kws] [--images 10000] [--repeats 200] [--json]

Both networks are calibrated (`ptq`), deployed for LiteRT and run there: accuracy on the samples that the reference file
is measured on, size of the file, and its latency against the reference file's, both on one thread, in turns. Keyword
spotting is calibrated on the first 128 of its 1,000 samples, without their labels, as nothing else is at hand: "held
out" is the accuracy of both files on the other 872. Image classification is calibrated on 512 training images. Exit
code 1 if the engine is less accurate than the reference file. Where data comes from: ptq_data.py.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from torch import Tensor, nn

import detent
from ptq_data import DATA

FOLDER = DATA / "mlperf_tiny"
KWS_SCALE, KWS_ZERO = 0.5847029089927673, 83


class DsCnn(nn.Module):
    """Depthwise separable convolutions over 49 x 10 features."""

    def __init__(self) -> None:
        super().__init__()
        layers: list[nn.Module] = [nn.Conv2d(1, 64, (10, 4), 2), nn.BatchNorm2d(64, eps=1e-3), nn.ReLU()]
        for _ in range(4):
            layers += [nn.Conv2d(64, 64, 3, padding=1, groups=64), nn.BatchNorm2d(64, eps=1e-3), nn.ReLU()]
            layers += [nn.Conv2d(64, 64, 1), nn.BatchNorm2d(64, eps=1e-3), nn.ReLU()]
        self.f = nn.Sequential(*layers)
        self.fc = nn.Linear(64, 12)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.f(F.pad(x, (1, 1, 4, 5))).mean((2, 3)))


class _Unit(nn.Module):
    def __init__(self, inputs: int, outputs: int, size: int, stride: int, *, norm: bool = True):
        super().__init__()
        self.pads = size == 3 and stride == 2
        self.c = nn.Conv2d(inputs, outputs, size, stride, padding=1 if size == 3 and stride == 1 else 0)
        self.b = nn.BatchNorm2d(outputs, eps=1e-3) if norm else None

    def forward(self, x: Tensor) -> Tensor:
        x = self.c(F.pad(x, (0, 1, 0, 1)) if self.pads else x)
        return x if self.b is None else self.b(x)


class ResNet8(nn.Module):
    """Three stages of one block; pixels 0..255."""

    def __init__(self) -> None:
        super().__init__()
        units = [(3, 16, 3, 1), (16, 16, 3, 1), (16, 16, 3, 1), (16, 32, 3, 2), (32, 32, 3, 1), (16, 32, 1, 2)]
        units += [(32, 64, 3, 2), (64, 64, 3, 1), (32, 64, 1, 2)]
        self.c = nn.ModuleList(_Unit(*unit, norm=unit[2] == 3) for unit in units)
        self.fc = nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        c = self.c
        x = F.relu(c[0](x))
        x = F.relu(x + c[2](F.relu(c[1](x))))
        x = F.relu(c[5](x) + c[4](F.relu(c[3](x))))
        x = F.relu(c[8](x) + c[7](F.relu(c[6](x))))
        return self.fc(x.mean((2, 3)))


def _pixels(part: str, count: int) -> Tensor:
    from PIL import Image

    Image.MAX_IMAGE_PIXELS = None
    pixels = np.array(Image.open(DATA / "cifar10" / f"{part}.png"))[:count].reshape(-1, 32, 32, 3)
    return torch.from_numpy(pixels).permute(0, 3, 1, 2).float()


def kws(_: int) -> tuple[nn.Module, list[Tensor], Tensor, Tensor, Path]:
    held = np.load(FOLDER / "kws_test.npz")
    samples = torch.from_numpy((held["codes"].astype(np.float32) - KWS_ZERO) * np.float32(KWS_SCALE))[:, None]
    net = DsCnn()
    net.load_state_dict(load_file(FOLDER / "dscnn_kws.safetensors"))
    labels = torch.from_numpy(held["labels"].astype(np.int64))
    return net.eval(), list(samples[:128].split(16)), samples, labels, FOLDER / "kws_ref_model.tflite"


def image_classification(count: int) -> tuple[nn.Module, list[Tensor], Tensor, Tensor, Path]:
    net = ResNet8()
    net.load_state_dict(load_file(FOLDER / "resnet8.safetensors"))
    labels = torch.tensor(json.loads((DATA / "cifar10" / "test_labels.json").read_text())[:count])
    calibration = list(_pixels("train_0", 512).split(32))
    return net.eval(), calibration, _pixels("test", count), labels, FOLDER / "pretrainedResnet_quant.tflite"


TASKS = {"kws": kws, "image_classification": image_classification}


class Runner:
    """A .tflite file, one sample at a time, on one thread; it takes numbers in its own layout and grid."""

    def __init__(self, path: Path):
        from ai_edge_litert.interpreter import Interpreter

        self._run = Interpreter(model_path=str(path), num_threads=1)
        self._run.allocate_tensors()
        (self._input,), (self._output,) = self._run.get_input_details(), self._run.get_output_details()

    def load(self, sample: np.ndarray) -> None:
        """`sample` is (1, channels, height, width)."""
        shape = tuple(self._input["shape"])
        array = sample if sample.shape == shape else sample.transpose(0, 2, 3, 1).reshape(shape)
        scale, zero = self._input["quantization"]
        if scale:
            kind = np.iinfo(self._input["dtype"])
            array = np.clip(np.round(array / scale) + zero, kind.min, kind.max).astype(self._input["dtype"])
        self._run.set_tensor(self._input["index"], np.ascontiguousarray(array))

    def invoke(self) -> None:
        self._run.invoke()

    def answer(self) -> int:
        return int(self._run.get_tensor(self._output["index"]).argmax())

    def right(self, samples: Tensor, labels: Tensor) -> np.ndarray:
        """Whether each answer is."""
        found = []
        for sample, label in zip(samples.split(1), labels.tolist(), strict=True):
            self.load(sample.numpy())
            self.invoke()
            found.append(self.answer() == label)
        return np.array(found)


def latency_ratio(ours: Runner, reference: Runner, sample: np.ndarray, repeats: int) -> float:
    """Of the medians, measured in turns."""
    times: dict[Runner, list[float]] = {ours: [], reference: []}
    for runner in times:
        runner.load(sample)
    for _ in range(repeats):
        for runner, found in times.items():
            began = time.perf_counter()
            runner.invoke()
            found.append(time.perf_counter() - began)
    return statistics.median(times[ours]) / statistics.median(times[reference])


def measured(name: str, images: int, repeats: int) -> dict[str, Any]:
    net, calibration, samples, labels, reference = TASKS[name](images)
    with torch.no_grad():
        exact = 100 * float((net(samples).argmax(1) == labels).double().mean())
    began = time.perf_counter()
    prepared = detent.prepare(net, (calibration[0][:1],), backend="litert", recipe="ptq")
    detent.calibrate(prepared, calibration)
    seconds = time.perf_counter() - began
    with tempfile.TemporaryDirectory() as folder:
        artifact = detent.deploy(prepared, Path(folder) / "out", dynamic_batch=False)
        (file,) = (artifact.folder / one for one in artifact.manifest["files"] if one.endswith(".tflite"))
        ours, theirs = Runner(file), Runner(reference)
        verdict = artifact.verify([(samples[:1], labels[:1])], latency=False, tensors=False)
        right = {"detent": ours.right(samples, labels), "reference": theirs.right(samples, labels)}
        used = sum(map(len, calibration)) if name == "kws" else 0
        return {
            "task": name,
            "samples": len(labels),
            "float": exact,
            **{who: 100 * float(found.mean()) for who, found in right.items()},
            "held_out": {who: 100 * float(found[used:].mean()) for who, found in right.items()},
            "bytes": file.stat().st_size,
            "reference_bytes": reference.stat().st_size,
            "size_ratio": file.stat().st_size / reference.stat().st_size,
            "latency_ratio": latency_ratio(ours, theirs, samples[:1].numpy(), repeats),
            "quantize_seconds": seconds,
            "verdict": verdict.line,
        }


def shown(line: dict[str, Any]) -> str:
    held = " : ".join(f"{value:.2f}" for value in line["held_out"].values())
    text = f"{line['task']:<22}float {line['float']:.2f}  detent {line['detent']:.2f}  "
    text += f"reference {line['reference']:.2f}  held out {held}  "
    return f"{text}size {line['size_ratio']:.2f}  latency {line['latency_ratio']:.2f}  ({line['verdict']})"


def main() -> int:
    parser = argparse.ArgumentParser(description="MLPerf Tiny on LiteRT, beside the reference files")
    parser.add_argument("--only", choices=TASKS, action="append")
    parser.add_argument("--images", type=int, default=10_000, help="of CIFAR-10's test images")
    parser.add_argument("--repeats", type=int, default=200, help="runs that latency is the median of")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    if not FOLDER.exists():
        print(f"no {FOLDER}: set DETENT_DATA", file=sys.stderr)
        return 2
    missed = False
    for name in given.only or TASKS:
        line = measured(name, given.images, given.repeats)
        missed |= line["detent"] < line["reference"]
        print(json.dumps(line) if given.json else shown(line), flush=True)
    return int(missed)


if __name__ == "__main__":
    raise SystemExit(main())

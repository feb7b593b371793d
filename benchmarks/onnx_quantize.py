"""What quantizing an ONNX file costs, against onnxruntime's own quantizer on the same data.

    python benchmarks/onnx_quantize.py            [--steps 32] [--rounds 3] [--only time|memory] [--json]

ResNet-18, 1x3x224x224, min-max ranges.

Time: both quantizers take turns in one process; wall times are the least of the rounds. SQNR is of the outputs against
the float network, both files run by onnxruntime. Run it alone on the machine.

Memory: each in a process of its own, which first quantizes a network of two nodes, so that libraries are loaded and
their code was run. Then the peak of resident memory over what it was, in MB of 2^20 bytes. "torch forward" is the same
network made by torch and run on one batch, without any quantization. The limit is twice the file and the sum of all
tensors that the nodes give for one batch. Needs Linux (/proc/self/clear_refs).
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import torch
from onnx import TensorProto, helper, numpy_helper
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import detent
from tests.models import resnet18

SLOWER = 1.5
SHAPE = (1, 3, 224, 224)
MEGABYTE = 2**20


class Reader(CalibrationDataReader):
    def __init__(self, batches: Iterator[np.ndarray], name: str):
        self._left = ({name: batch} for batch in batches)

    def get_next(self) -> dict[str, np.ndarray] | None:
        return next(self._left, None)


def batches(steps: int, shape: tuple[int, ...] = SHAPE) -> Iterator[np.ndarray]:
    generator = torch.Generator().manual_seed(0)
    return (torch.randn(shape, generator=generator).numpy() for _ in range(steps))


def input_name(path: str) -> str:
    return str(onnx.load_model(path).graph.input[0].name)


def by_detent(path: str, made: str, given: Iterator[np.ndarray]) -> None:
    detent.quantize(path, given, backend="onnxruntime", folder=made)


def by_onnxruntime(path: str, made: str, given: Iterator[np.ndarray]) -> None:
    quantize_static(
        path,
        f"{made}.onnx",
        Reader(given, input_name(path)),
        quant_format=QuantFormat.QDQ,
        per_channel=True,
        activation_type=QuantType.QUInt8,
        weight_type=QuantType.QInt8,
    )


def forward(path: str, made: str, given: Iterator[np.ndarray]) -> None:  # noqa: ARG001 (called as the quantizers are)
    network = resnet18().eval()
    with torch.no_grad():
        for batch in given:
            network(torch.from_numpy(batch).expand(SHAPE))


WAYS: dict[str, Callable[[str, str, Iterator[np.ndarray]], None]] = {
    "detent": by_detent,
    "onnxruntime": by_onnxruntime,
    "torch forward": forward,
}


# ---- time ----


def outputs(path: str, given: Iterator[np.ndarray]) -> np.ndarray:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    return np.concatenate([session.run(None, {input_name(path): batch})[0] for batch in given])


def compare_time(path: str, folder: str, steps: int, rounds: int) -> float:
    """Detent's time over that of quantize_static."""
    times: dict[str, list[float]] = {"detent": [], "onnxruntime": []}
    for _ in range(rounds):
        for who, seconds in times.items():
            start = time.perf_counter()
            WAYS[who](path, f"{folder}/{who}", batches(steps))
            seconds.append(time.perf_counter() - start)
    exact = outputs(path, batches(8))
    for who, file in (("detent", f"{folder}/detent/model.onnx"), ("onnxruntime", f"{folder}/onnxruntime.onnx")):
        noise = outputs(file, batches(8)) - exact
        sqnr = 10 * np.log10((exact**2).sum() / (noise**2).sum())
        print(f"{who:14} {min(times[who]):6.2f} s  SQNR {sqnr:5.2f} dB", file=sys.stderr)
    ratio = min(times["detent"]) / min(times["onnxruntime"])
    print(f"ratio {ratio:.2f} (limit {SLOWER})", file=sys.stderr)
    return ratio


# ---- memory ----


def resident(which: str) -> float:
    """VmRSS or VmHWM of this process, in MB."""
    line = next(text for text in Path("/proc/self/status").read_text().splitlines() if text.startswith(which))
    return int(line.split()[1]) * 1024 / MEGABYTE


def small_file(folder: str) -> str:
    weight = np.random.default_rng(0).standard_normal((4, 3, 3, 3)).astype(np.float32)
    nodes = [helper.make_node("Conv", ["x", "w"], ["c"], name="conv"), helper.make_node("Relu", ["c"], ["y"], name="r")]
    ends = [
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)]
        for name, shape in (("x", [1, 3, 6, 6]), ("y", [1, 4, 4, 4]))
    ]
    graph = helper.make_graph(nodes, "small", *ends, [numpy_helper.from_array(weight, "w")])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save_model(model, f"{folder}/small.onnx")
    return f"{folder}/small.onnx"


def measure(who: str, path: str, steps: int) -> None:
    """Prints how far the peak of this process is above what it had."""
    with tempfile.TemporaryDirectory() as folder:
        if who == "torch forward":
            torch.nn.functional.conv2d(torch.zeros(1, 3, 6, 6), torch.zeros(4, 3, 3, 3))
        else:
            WAYS[who](small_file(folder), f"{folder}/small", batches(2, (1, 3, 6, 6)))
        before = resident("VmRSS")
        Path("/proc/self/clear_refs").write_text("5")  # the peak counts from here
        WAYS[who](path, f"{folder}/made", batches(steps))
        print(resident("VmHWM") - before)


def activations(path: str) -> int:
    """Bytes of all tensors that the nodes give for one batch, in float32."""
    graph = onnx.shape_inference.infer_shapes(onnx.load_model(path)).graph
    given = {name for node in graph.node for name in node.output}
    values = {value.name: value for value in (*graph.value_info, *graph.output) if value.name in given}
    return sum(4 * math.prod(dim.dim_value for dim in v.type.tensor_type.shape.dim) for v in values.values())


def compare_memory(path: str, steps: int) -> tuple[float, float]:
    """Detent's growth over that of quantize_static, and over the limit."""
    size, given = Path(path).stat().st_size / MEGABYTE, activations(path) / MEGABYTE
    limit = 2 * size + given
    print(f"model {size:.1f} MB, activations of one batch {given:.1f} MB: limit {limit:.1f} MB", file=sys.stderr)
    grown = {}
    for who, count in (("detent", steps), ("detent", 2 * steps), ("onnxruntime", steps), ("torch forward", 1)):
        command = [sys.executable, __file__, "--measure", who, "--file", path, "--steps", str(count)]
        told = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        grown[who, count] = float(told.split()[-1])
        print(f"{who:14} {count:3} steps: {grown[who, count]:6.1f} MB", file=sys.stderr)
    return grown["detent", steps] / grown["onnxruntime", steps], grown["detent", steps] / limit


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", choices=("time", "memory"))
    parser.add_argument("--json", action="store_true", help="print the ratios as JSON")
    parser.add_argument("--measure", choices=tuple(WAYS), help=argparse.SUPPRESS)
    parser.add_argument("--file", help=argparse.SUPPRESS)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    if options.measure:
        measure(options.measure, options.file, options.steps)
        return 0
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as folder:
        path = f"{folder}/model.onnx"
        torch.onnx.export(
            resnet18().eval(), (torch.randn(SHAPE),), path, dynamo=True, external_data=False, verbose=False
        )
        figures, kept = {}, True
        if options.only != "memory":
            figures["time, of quantize_static's"] = compare_time(path, folder, options.steps, options.rounds)
            kept = figures["time, of quantize_static's"] <= SLOWER
        if options.only != "time":
            figures["memory, of quantize_static's"], share = compare_memory(path, options.steps)
            kept = kept and share <= 1
    if options.json:
        print(json.dumps({name: round(value, 3) for name, value in figures.items()}, indent=2))
    return int(not (kept or options.json))


if __name__ == "__main__":
    sys.exit(main())

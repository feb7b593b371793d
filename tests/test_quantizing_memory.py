"""What `detent.quantize` keeps in memory, measured in a process of its own: one copy of the weights, no activations."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="peaks are read from /proc")

MEGABYTE = 2**20
WEIGHTS = 3  # of 9 MB each

MEASURE = """
import gc, json, sys
from pathlib import Path
import torch
import detent

def resident(which):
    text = Path("/proc/self/status").read_text()
    return int(next(line for line in text.splitlines() if line.startswith(which)).split()[1]) * 1024

def quantize(file, steps):
    gc.collect()  # graphs are cycles
    before = resident("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # the peak counts from here
    batches = (torch.randn(4, 512, 4, 4) for _ in range(steps))
    detent.quantize(file, batches, backend="onnxruntime", folder=Path(file).with_suffix(""), steps=steps)
    return resident("VmHWM") - before

small, large = sys.argv[1:]
quantize(small, 2)  # loads the libraries
print(json.dumps([quantize(large, 4), quantize(large, 48)]))
"""


def file_of_convolutions(path: Path, count: int, width: int) -> str:
    rng = np.random.default_rng(0)
    nodes, weights, last = [], [], "x"
    for index in range(count):
        array = (rng.standard_normal((width, 512, 3, 3)) * 0.02).astype(np.float32)
        weights.append(numpy_helper.from_array(array, f"w{index}"))
        nodes.append(helper.make_node("Conv", [last, f"w{index}"], [f"c{index}"], name=f"conv{index}", pads=[1] * 4))
        nodes.append(helper.make_node("Relu", [f"c{index}"], [f"r{index}"], name=f"relu{index}"))
        last = f"r{index}"
    ends = [
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, [4, size, 4, 4])]
        for name, size in (("x", 512), (last, width))
    ]
    graph = helper.make_graph(nodes, "net", *ends, weights)
    onnx.save_model(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), str(path))
    return str(path)


@pytest.fixture(scope="module")
def peaks(tmp_path_factory) -> list[int]:
    """For 4 and for 48 batches: how far the peak was above what the process had."""
    folder = tmp_path_factory.mktemp("memory")
    small = file_of_convolutions(folder / "small.onnx", 1, 4)
    large = file_of_convolutions(folder / "large.onnx", WEIGHTS, 512)
    # What is large gets pages of its own and gives them back, so that a peak does not depend on holes in the heap.
    environment = {**os.environ, "MALLOC_MMAP_THRESHOLD_": str(MEGABYTE), "MALLOC_TRIM_THRESHOLD_": str(MEGABYTE)}
    told = subprocess.run(
        [sys.executable, "-c", MEASURE, small, large],
        check=True,
        capture_output=True,
        text=True,
        timeout=300,
        env=environment,
    )
    return json.loads(told.stdout)


def test_the_weights_are_there_twice_at_most(peaks):
    weight = 512 * 512 * 9 * 4
    # Twice while the file is read, and the bytes of one weight on the way; 12 MB are for what the allocator keeps.
    assert peaks[0] < 2 * WEIGHTS * weight + weight + 12 * MEGABYTE


def test_more_batches_take_no_more_memory(peaks):
    # The activations of 44 batches would be 40 MB; the allocator's own ups and downs were below 6.
    assert peaks[1] < peaks[0] + 20 * MEGABYTE

"""Whole models of the sample, byte for byte: each file as it was when the engine or the vendor's library took it.

`python -m tests.deployment.test_golden_models` writes them anew, to be looked at and run before they are kept.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from detent.numerics import IntGrid, PerChannel, Scheme
from detent.targets.base import Deployment
from detent.targets.formats import find_format
from tests.targets.parameter_files.sample import BIAS, INT8_AFFINE, UINT8, deployment, power_of_two_deployment

GOLDEN = Path(__file__).parent / "golden"
NARROW = Scheme(IntGrid(8, narrow=True))
NARROW_CHANNELS = Scheme(IntGrid(8, narrow=True), granularity=PerChannel(0))


def ncnn() -> Deployment:
    return deployment("ncnn", activation=NARROW, weight=NARROW_CHANNELS, bias=None, inputs_only=True)


def mnn() -> Deployment:
    return deployment("mnn", activation=NARROW, weight=NARROW_CHANNELS)


def torch_x86() -> Deployment:
    return deployment("torch_x86", activation=UINT8)


CASES: dict[str, tuple[str, Callable[[], Deployment]]] = {
    "model.ncnn.param": ("ncnn", ncnn),
    "model.ncnn.bin": ("ncnn", ncnn),
    "model.table": ("ncnn_table", ncnn),
    "model.mnn_compression.bin": ("mnn_compression", mnn),
    "model.mnn_compression.json": ("mnn_compression", mnn),
    "model.tflite": ("tflite", lambda: deployment("litert", activation=INT8_AFFINE, weight=NARROW_CHANNELS)),
    "model.json": ("torch", torch_x86),
    "model.safetensors": ("torch", torch_x86),
    "nxp.onnx": ("nxp_ranges", lambda: power_of_two_deployment("nxp", bias=BIAS)),
    "qlinear.onnx": ("onnx_qlinear", lambda: deployment("tvm", activation=UINT8, weight=UINT8)),
    "model.espdl": ("espdl", lambda: power_of_two_deployment("esp_dl", bias=BIAS)),
    "model.xml": ("openvino_ir", lambda: deployment("openvino", bias=None)),
    "model.bin": ("openvino_ir", lambda: deployment("openvino", bias=None)),
}
NEEDS = {"tflite": "ai_edge_litert", "openvino_ir": "openvino"}


def content(file: str) -> bytes:
    name, make = CASES[file]
    # The version of OpenVINO that wrote the file is no part of the network.
    return re.sub(rb"<rt_info>\s*<info.*?</rt_info>", b"", find_format(name).write(make()).files[file], flags=re.DOTALL)


@pytest.mark.parametrize("file", CASES)
def test_the_file_is_as_it_should_be(file: str) -> None:
    pytest.importorskip(NEEDS.get(CASES[file][0], "onnx"))
    assert content(file) == (GOLDEN / file).read_bytes()


if __name__ == "__main__":
    GOLDEN.mkdir(exist_ok=True)
    for each in CASES:
        (GOLDEN / each).write_bytes(content(each))

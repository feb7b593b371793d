"""Each text file of the sample, byte for byte: what a vendor's tool gets to read."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from detent.numerics import IntGrid, LogGrid, Scheme
from detent.targets.base import Deployment
from detent.targets.formats import find_format
from tests.targets.parameter_files.sample import BIAS, INT8, INT8_AFFINE, UINT8, deployment, power_of_two_deployment

GOLDEN = Path(__file__).parent / "golden"
LOG = Scheme(LogGrid())
UINT16 = Scheme(IntGrid(16, signed=False), symmetric=False)

WRITTEN: dict[str, tuple[str, Callable[[], Deployment]]] = {
    "tensorrt_ranges.json": ("tensorrt_ranges", lambda: deployment("tensorrt", bias=None)),
    "tensorrt_clip_ranges.json": ("tensorrt_ranges", lambda: deployment("tensorrt", bias=None)),
    "tensorrt_calibration.cache": ("tensorrt_ranges", lambda: deployment("tensorrt", bias=None)),
    "quantization_overrides_1.0.0.json": ("qualcomm_encodings", lambda: deployment("qnn", activation=UINT8)),
    "quantization_overrides_0.6.1.json": ("qualcomm_encodings", lambda: deployment("qnn", activation=UINT8)),
    "snpe_encodings.json": ("qualcomm_encodings", lambda: deployment("snpe", activation=UINT8, weight=UINT8)),
    "quant_info.json": ("vitis_quant_info", lambda: power_of_two_deployment("vitis")),
    "ppl_quantization.json": ("ppl_json", lambda: deployment("ppl_cuda")),
    "nnie_gfpq.json": ("nnie_gfpq", lambda: deployment("nnie", activation=LOG, weight=LOG, bias=None)),
    "tengine.scale": ("tengine_scale", lambda: deployment("tengine", activation=UINT8, weight=UINT8)),
    "ascend_record.txt": ("ascend_record", lambda: deployment("ascend", activation=UINT8, weight=INT8, bias=None)),
    "stpu_minmax.json": ("stpu_minmax", lambda: deployment("stpu", weight=INT8)),
    "rknn.quantization.cfg": ("rknn", lambda: deployment("rknn", activation=INT8_AFFINE)),
    "acl_tensors.json": ("acl", lambda: deployment("acl", activation=INT8_AFFINE)),
    "ppq_config.json": ("ppq_json", lambda: power_of_two_deployment("fpga", bias=BIAS)),
    "clip_ranges.json": ("mqbench_json", lambda: power_of_two_deployment("vitis")),
}

VARIANTS: dict[str, tuple[str, str, Callable[[], Deployment]]] = {
    "ppl_w8a16.json": (
        "ppl_w8a16_json",
        "ppl_quantization.json",
        lambda: deployment("ppl_w8a16", activation=UINT16, weight=UINT8, bias=None),
    ),
    "clip_ranges_ppl_cuda.txt": ("mqbench_json", "clip_ranges.json", lambda: deployment("ppl_cuda")),
}

CASES = {golden: (name, golden, make) for golden, (name, make) in WRITTEN.items()} | VARIANTS


@pytest.mark.parametrize("golden", CASES)
def test_the_file_is_as_it_should_be(golden):
    name, file, make = CASES[golden]
    assert find_format(name).write(make()).files[file].decode() == (GOLDEN / golden).read_text()


@pytest.mark.parametrize("golden", CASES)
def test_writing_twice_gives_the_same(golden):
    name, file, make = CASES[golden]
    assert find_format(name).write(make()).files[file] == find_format(name).write(make()).files[file]


def test_no_file_can_be_taken_for_the_deployed_model():
    """A package finds its model as the file whose name ends in model.onnx."""
    for name, file, make in CASES.values():
        written = find_format(name).write(make()).files
        assert file in written
        assert not [other for other in written if other.endswith("model.onnx")]

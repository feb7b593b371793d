"""MQBench's clip ranges, a dialect for each backend."""

from __future__ import annotations

import pytest

from detent.errors import ArtifactError, DeployError
from detent.targets.base.mqbench_json import FORMAT, read_clip_ranges
from detent.targets.openppl import read_ppl
from detent.targets.qualcomm.encodings import QualcommRange, read_ranges
from detent.targets.tensorrt import read_dynamic_ranges
from tests.targets.parameter_files.sample import POWERS, UINT8, deployment, power_of_two_deployment

FILE = "clip_ranges.json"


def test_tensorrt():
    assert read_dynamic_ranges(FORMAT.write(deployment("tensorrt")).files[FILE])["relu1"] == 127 * 0.25


def test_snpe():
    found = read_ranges(FORMAT.write(deployment("snpe", activation=UINT8)).files[FILE])
    assert found.activations["relu1"] == (QualcommRange(8, 0.0, 63.75),)


def test_vitis():
    scales = read_clip_ranges(FORMAT.write(power_of_two_deployment("vitis")).files[FILE])
    assert {name: scales[name] for name in POWERS} == POWERS


def test_ppl_w8a16():
    assert read_ppl(FORMAT.write(deployment("ppl_w8a16", activation=UINT8)).files[FILE]).tensors["relu1"].scale == 0.25


def test_ppl_cuda_is_no_json():
    content = FORMAT.write(deployment("ppl_cuda")).files[FILE]
    assert content.startswith(b"x: 12.8")
    assert read_clip_ranges(content)["relu1"] == 32.0


def test_a_backend_without_such_a_file_is_refused():
    with pytest.raises(DeployError, match="mqbench_json for backend 'tengine'"):
        FORMAT.write(deployment("tengine"))


@pytest.mark.parametrize("content", [b"x: many\n", b'{"tensorrt": {}}', b"{"])
def test_other_files_are_refused(content):
    with pytest.raises(ArtifactError):
        read_clip_ranges(content)

"""PPQ's table."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from detent.errors import ArtifactError, DeployError
from detent.targets.base.ppq_json import FORMAT, PpqConfig, read_ppq
from tests.targets.parameter_files.sample import BIAS, deployment, power_of_two_deployment


def test_a_tensor_is_active_where_it_is_made_and_overlapped_where_it_is_read():
    found = read_ppq(FORMAT.write(deployment("metax")).files["ppq_config.json"])
    states = {
        (operation, tensor): config.state
        for operation, tensors in found.configs.items()
        for tensor, config in tensors.items()
    }
    assert states["conv1", "x"] == "ACTIVATED"
    assert states["relu1", "relu1"] == "ACTIVATED"
    assert states["conv2", "relu1"] == states["add", "relu1"] == "OVERLAPPED"
    assert states["conv1", "conv1.weight"] == "BAKED"
    assert states["conv1", "conv1.bias"] == "PASSIVE_BAKED"
    assert ("relu1", "conv1") not in states


def test_what_is_said_of_a_tensor():
    found = read_ppq(FORMAT.write(power_of_two_deployment("fpga", bias=BIAS)).files["ppq_config.json"])
    properties = frozenset(("PER_TENSOR", "LINEAR", "SYMMETRICAL", "POWER_OF_2"))
    assert found.configs["conv1"]["x"] == PpqConfig(8, properties, "ACTIVATED", -128, 127, 2**-4, 0)
    assert found.platforms["conv1"] == "FPGA_INT8"
    assert found.platforms["relu1"] == "FPGA_INT8"


def test_channels_have_a_scale_each():
    config = read_ppq(FORMAT.write(deployment("metax")).files["ppq_config.json"]).configs["conv1"]["conv1.weight"]
    assert "PER_CHANNEL" in config.properties
    assert config.scale == [pytest.approx(0.01), pytest.approx(0.02)]
    assert config.zero_point == [0, 0]


def test_a_shared_scale_is_read_from_its_dominator():
    content = json.loads(FORMAT.write(deployment("metax")).files["ppq_config.json"])
    flat = content["configs"]["fc"]["flat"]
    assert flat["dominator"] == content["configs"]["pool"]["pool"]["hash"] != flat["hash"]


def test_a_backend_that_ppq_does_not_have_is_refused():
    with pytest.raises(DeployError, match="ppq_json for backend 'litert'"):
        FORMAT.write(deployment("litert"))


@pytest.mark.parametrize(
    ("backend", "platform"),
    [
        ("academic_int4", "ACADEMIC_INT4"),
        ("trt_int8", "TRT_INT8"),
        ("my_chip", "EXTENSION"),
        ("extension", "EXTENSION"),
    ],
)
def test_a_backend_of_a_users_own_has_the_platform_of_its_name_or_is_an_extension(backend, platform):
    made = deployment("metax")
    own = replace(made, backend=replace(made.backend, name=backend))
    assert set(read_ppq(FORMAT.write(own).files["ppq_config.json"]).platforms.values()) <= {platform, "FP32"}
    assert platform in read_ppq(FORMAT.write(own).files["ppq_config.json"]).platforms.values()


def test_other_files_are_refused():
    with pytest.raises(ArtifactError):
        read_ppq(b'{"configs": {}}')

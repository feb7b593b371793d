"""Qualcomm's quantization overrides."""

from __future__ import annotations

import json

import numpy as np
import pytest

from detent.errors import ArtifactError, DeployError
from detent.numerics import IntGrid, LogGrid, PerGroup, Scheme
from detent.targets.qualcomm.encodings import FORMAT, QualcommEncoding, QualcommRange, read_overrides, read_ranges
from tests.targets.parameter_files.sample import INT8, INT8_AFFINE, SCALES, UINT8, ZERO_POINTS, deployment

FILES = ("quantization_overrides_0.6.1.json", "quantization_overrides_1.0.0.json")


@pytest.mark.parametrize("file", FILES)
def test_both_versions_say_the_same(file):
    found = read_overrides(FORMAT.write(deployment("qnn", activation=UINT8)).files[file])
    assert found.activations == {
        name: QualcommEncoding(8, False, (float(np.float32(scale)),), (-ZERO_POINTS[name],), False)
        for name, scale in SCALES.items()
    }
    scale = tuple(float(np.float32(value)) for value in (0.01, 0.02))
    assert found.parameters["conv1.weight"] == QualcommEncoding(8, True, scale, (-128, -128), True)
    assert list(found.parameters) == ["conv1.weight", "conv2.weight", "fc.weight"]


@pytest.mark.parametrize("activation", [UINT8, INT8, INT8_AFFINE], ids=str)
def test_offsets_count_from_the_least_code(activation):
    """Whatever the codes are, real = scale * (code + offset), with codes from 0."""
    made = deployment("qnn", activation=activation)
    found = read_overrides(FORMAT.write(made).files[FILES[1]])
    for tensor in made.activations:
        encoding = found.activations[tensor.tensor]
        assert encoding.minimum[0] == pytest.approx(float(tensor.minimum))
        assert encoding.maximum[0] == pytest.approx(float(tensor.maximum))
        assert encoding.symmetric == (activation is INT8)


def test_the_least_code_of_a_narrow_grid_is_said_to_be_lost():
    made = deployment("qnn", activation=Scheme(IntGrid(8, narrow=True)))
    assert any("cannot leave out a code" in note for note in FORMAT.write(made).notes)


def test_ranges_hold_parameters_too():
    ranges = read_ranges(FORMAT.write(deployment("snpe", activation=UINT8, weight=UINT8)).files["snpe_encodings.json"])
    assert ranges.activations["relu1"] == (QualcommRange(8, 0.0, 63.75),)
    assert [one.bits for one in ranges.parameters["fc.weight"]] == [8]
    assert ranges.parameters["fc.weight"][0].minimum == pytest.approx(-130 * 0.03)


def test_biases_are_left_to_the_converter_and_it_says_so():
    made = deployment("qnn", activation=UINT8)
    files = FORMAT.write(made).files
    assert not [name for name in json.loads(files[FILES[0]])["param_encodings"] if "bias" in name]
    assert any("--bias_bitwidth 32" in note for note in FORMAT.write(made).notes)


def test_logarithms_are_refused():
    with pytest.raises(DeployError, match=r"activation 'x' \(log8.*as qualcomm_encodings\n.*integers only"):
        FORMAT.write(deployment("qnn", activation=Scheme(LogGrid())))


def test_groups_are_refused():
    made = deployment("qnn", activation=UINT8, weight=Scheme(IntGrid(8), granularity=PerGroup(1, 1)))
    with pytest.raises(DeployError, match=r"weight 'conv1.weight'.*\n.*a tensor or a channel"):
        FORMAT.write(made)


@pytest.mark.parametrize("content", [b'{"version": "3.0.0"}', b'{"version": "1.0.0"}', b"[1]"])
def test_other_files_are_refused(content):
    with pytest.raises(ArtifactError):
        read_overrides(content)


def test_a_list_of_per_channel_entries_of_another_tool():
    """As AIMET's documents show them."""
    entry = {"bitwidth": 4, "dtype": "int", "is_symmetric": "True", "min": -0.8, "max": 0.7, "offset": -8, "scale": 0.1}
    content = {"version": "0.6.1", "activation_encodings": {}, "param_encodings": {"w": [entry, entry]}}
    found = read_overrides(json.dumps(content).encode())
    assert found.parameters["w"] == QualcommEncoding(4, True, (0.1, 0.1), (-8, -8), True)

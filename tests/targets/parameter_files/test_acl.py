"""The data types of Arm Compute Library."""

from __future__ import annotations

import pytest

from detent.errors import ArtifactError, DeployError
from detent.numerics import IntGrid, Scheme
from detent.targets.acl import FORMAT, AclTensor, read_acl
from tests.targets.parameter_files.sample import INT8, INT8_AFFINE, UINT8, deployment


@pytest.mark.parametrize(
    ("activation", "data_type", "offset"),
    [(INT8_AFFINE, "QASYMM8_SIGNED", -28), (UINT8, "QASYMM8", 100), (INT8, "QASYMM8_SIGNED", 0)],
    ids=str,
)
def test_activations(activation, data_type, offset):
    found = read_acl(FORMAT.write(deployment("acl", activation=activation)).files["acl_tensors.json"])
    assert found["x"] == AclTensor(data_type, (pytest.approx(0.1),), (offset,))


def test_parameters():
    found = read_acl(FORMAT.write(deployment("acl", activation=INT8_AFFINE)).files["acl_tensors.json"])
    assert found["conv1.weight"].data_type == "QSYMM8_PER_CHANNEL"
    assert found["conv1.bias"].data_type == "S32"
    assert found["conv1.bias"].scale == (pytest.approx(0.001), pytest.approx(0.002))


def test_four_bits_are_refused():
    with pytest.raises(DeployError, match=r"'x' \(int4.*as acl\n.*QASYMM8"):
        FORMAT.write(deployment("acl", activation=Scheme(IntGrid(4))))


def test_other_files_are_refused():
    with pytest.raises(ArtifactError):
        read_acl(b'{"x": {}}')

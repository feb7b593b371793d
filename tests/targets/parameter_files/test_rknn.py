"""Rockchip's quantization file."""

from __future__ import annotations

import numpy as np
import pytest

from detent.errors import ArtifactError, DeployError
from detent.targets.rknn import FORMAT, RknnGrid, read_rknn
from tests.targets.parameter_files.sample import INT8_AFFINE, UINT8, deployment


def test_grids_read_back():
    made = deployment("rknn", activation=INT8_AFFINE)
    found = read_rknn(FORMAT.write(made).files["rknn.quantization.cfg"])
    assert found["relu1"] == RknnGrid(True, False, "int8", (0.0,), (63.75,), (0.25,), (-128,))
    for tensor in made.tensors:
        if tensor.role != "bias":
            np.testing.assert_array_equal(np.float32(found[tensor.tensor].scale), np.atleast_1d(tensor.scale))
            np.testing.assert_array_equal(found[tensor.tensor].zero_point, np.atleast_1d(tensor.zero_point))
    assert found["conv1.weight"].per_channel
    assert not found["conv1.weight"].affine


def test_a_file_of_the_toolkit():
    found = read_rknn(
        b"""custom_quantize_layers:
  bad: float16
quantize_parameters:
  Preprocessor/sub:0:
    qtype: asymmetric_quantized
    qmethod: layer
    dtype: int8
    min: [-1.0]
    max: [1.0]
    scale: [0.00784313725490196]
    zero_point: [0]
    ori_min: [-1.0]
    ori_max: [1.0]
"""
    )
    assert found["Preprocessor/sub:0"].scale == (0.00784313725490196,)


def test_unsigned_codes_are_refused():
    with pytest.raises(DeployError, match=r"'x'.*as rknn\n.*signed"):
        FORMAT.write(deployment("rknn", activation=UINT8))


@pytest.mark.parametrize("content", [b"{", b"[]", b"quantize_parameters: {x: {}}"])
def test_other_files_are_refused(content):
    with pytest.raises(ArtifactError):
        read_rknn(content)

"""NNIE's magnitudes."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from detent.errors import ArtifactError, DeployError
from detent.numerics import LogGrid, Scheme
from detent.targets.base import Deployment
from detent.targets.nnie import FORMAT, GfpqParameters, read_gfpq
from tests.targets.parameter_files.sample import deployment

LOG = Scheme(LogGrid())


def logarithmic() -> Deployment:
    return deployment("nnie", activation=LOG, weight=LOG, bias=None)


def test_each_operation_has_the_magnitudes_of_its_inputs():
    found = read_gfpq(FORMAT.write(logarithmic()).files["nnie_gfpq.json"]).magnitudes
    # Pooling over all, flattening and ReLU have no entry there.
    assert list(found) == ["conv1", "conv2", "add", "fc"]
    assert found["add"] == (0.25, 0.5)
    # 0.1 is between two steps of 1/16 octave.
    assert found["conv1"] == (float(np.float32(2 ** (-53 / 16))),)


def test_grouped_convolutions_are_left_out_and_named():
    made = logarithmic()
    conv = next(node for node in made.model.graph.node if node.name == "conv2")
    conv.attribute.insert(0, onnx.helper.make_attribute("group", 2))
    found = read_gfpq(FORMAT.write(made).files["nnie_gfpq.json"]).magnitudes
    assert "conv2" not in found
    assert "conv1" in found
    assert any("conv2 have none" in note for note in FORMAT.write(made).notes)


def test_upsampling_has_a_second_entry():
    """The mapper makes an interpolation and a permutation of it."""
    made = logarithmic()
    node = next(node for node in made.model.graph.node if node.name == "pool")
    node.op_type = "Resize"
    found = read_gfpq(FORMAT.write(made).files["nnie_gfpq.json"]).magnitudes
    assert found["pool_permute_0"] == found["pool"]


def test_integers_are_refused():
    with pytest.raises(DeployError, match=r"'x' \(int8.*as nnie_gfpq\n.*LogGrid\(bits=8, steps=16\)"):
        FORMAT.write(deployment("nnie"))


def test_reading():
    assert read_gfpq(b'{"nnie": {"gfpq_param_dict": {"c": [1.5]}}}') == GfpqParameters({"c": (1.5,)})
    with pytest.raises(ArtifactError):
        read_gfpq(b'{"nnie": {}}')

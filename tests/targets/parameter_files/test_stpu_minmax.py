"""STPU's ranges and exponents."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from detent.errors import DeployError
from detent.targets.stpu import FORMAT, StpuEntry, read_stpu
from tests.targets.parameter_files.sample import INT8, PER_CHANNEL, UINT8, deployment


def test_ranges_are_127_scales_to_each_side():
    found = read_stpu(FORMAT.write(deployment("stpu", weight=INT8)).files["stpu_minmax.json"])
    assert (found["relu1"].minimum, found["relu1"].maximum) == (-31.75, 31.75)
    weights = found["conv2_weights"]
    assert (np.float32(weights.minimum), np.float32(weights.maximum)) == (np.float32(-0.635), np.float32(0.635))
    assert found["conv1_bias"] == StpuEntry(scale=pytest.approx(0.1 * 0.02))


def test_least_exponents():
    found = read_stpu(FORMAT.write(deployment("stpu", weight=INT8)).files["stpu_minmax.json"])
    # conv1: sqrt(2*3*3) terms * 12.7 * 2.54 = 136.9, in [2^7, 2^8): 127 + 7 - 10. Its output has the range of the ReLU.
    assert found["conv1"] == StpuEntry(-31.75, 31.75, 124)
    # conv2: sqrt(2) * 31.75 * 0.635 = 28.5, but it gives up to 63.5, in [2^5, 2^6): 127 + 5 - 10.
    assert found["conv2"].emin == 122
    assert found["y"].emin == 128
    assert found["add"].emin is None


def test_what_is_concatenated_gets_the_range_of_the_result_and_it_says_so():
    made = deployment("stpu", weight=INT8)
    node = next(node for node in made.model.graph.node if node.name == "add")
    node.op_type = "Concat"
    node.attribute.append(onnx.helper.make_attribute("axis", 1))
    found = read_stpu(FORMAT.write(made).files["stpu_minmax.json"])
    assert found["relu1"].maximum == found["conv2"].maximum == found["add"].maximum
    assert any("relu1, conv2 have that of add" in note for note in FORMAT.write(made).notes)


def test_the_range_of_a_sigmoid_is_fixed():
    made = deployment("stpu", weight=INT8)
    next(node for node in made.model.graph.node if node.name == "relu1").op_type = "Sigmoid"
    assert read_stpu(FORMAT.write(made).files["stpu_minmax.json"])["relu1"] == StpuEntry(-1.0, 1.0)
    assert FORMAT.write(made).notes == ("STPU's sigmoid gives -1 to 1: relu1 has that range, not its own",)


@pytest.mark.parametrize("scheme", [{"activation": UINT8}, {"weight": PER_CHANNEL}], ids=["affine", "per-channel"])
def test_other_numbers_are_refused(scheme):
    with pytest.raises(DeployError, match="as stpu_minmax"):
        FORMAT.write(deployment("stpu", **scheme))

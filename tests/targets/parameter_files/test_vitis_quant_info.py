"""Vitis AI's positions of the binary point."""

from __future__ import annotations

import pytest

from detent.errors import ArtifactError, DeployError
from detent.targets.vitis.quant_info import FORMAT, FixPoint, read_quant_info
from tests.targets.parameter_files.sample import PER_CHANNEL, POWER_OF_TWO, POWERS, deployment, power_of_two_deployment


def test_positions_are_those_of_the_scales():
    made = power_of_two_deployment("vitis")
    info = read_quant_info(FORMAT.write(made).files["quant_info.json"])
    assert {name: point.scale for name, point in info.outputs.items()} == POWERS
    assert {name: point.scale for name, point in info.parameters.items()} == {
        tensor.tensor: float(tensor.scale) for tensor in made.parameters
    }
    assert info.inputs == {}


def test_a_file_that_vai_q_pytorch_wrote():
    info = read_quant_info(
        b"""{
  "param":
  {
    "ResNet::conv1.weight":[[8,8]],
    "ResNet::conv1.bias":[[8,7]]
  },
  "output":
  {
    "ResNet::input_0":[[8,5]]
  },
  "input":
  {

  },
  "fast_finetuned":false,
  "bias_corrected":true,
  "version":"3.0.0+a44284e+torch1.12.1"
}"""
    )
    assert info.parameters == {"ResNet::conv1.weight": FixPoint(8, 8), "ResNet::conv1.bias": FixPoint(8, 7)}
    assert info.outputs["ResNet::input_0"].scale == 1 / 32


def test_scales_that_are_no_powers_of_two_are_refused():
    with pytest.raises(DeployError, match=r"as vitis_quant_info\n.*powers of two"):
        FORMAT.write(deployment("vitis", weight=POWER_OF_TWO, bias=None))


def test_channels_are_refused():
    with pytest.raises(DeployError, match=r"weight 'conv1.weight'.*as vitis_quant_info\n.*one scale for a tensor"):
        FORMAT.write(deployment("vitis", activation=POWER_OF_TWO, weight=PER_CHANNEL, scales=POWERS))


@pytest.mark.parametrize("content", [b"{}", b'{"param": {"w": [[8, 0.5, 0, 1.0]]}, "output": {}, "input": {}}'])
def test_files_of_other_targets_are_refused(content):
    with pytest.raises(ArtifactError):
        read_quant_info(content)

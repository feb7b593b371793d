"""OpenPPL's forms."""

from __future__ import annotations

import json

import numpy as np
import pytest

from detent.deploy.formats.ppl_json import read_ppl, write
from detent.errors import ArtifactError, DeployError
from detent.numerics import IntGrid, Scheme
from tests.deploy.formats.sample import UINT8, deployment

UINT16 = Scheme(IntGrid(16, signed=False), symmetric=False)
CASES = {
    "cuda": lambda: deployment("ppl_cuda"),
    "dsp": lambda: deployment("ppl_dsp", activation=UINT8, weight=UINT8),
    "w8a16": lambda: deployment("ppl_w8a16", activation=UINT16, weight=UINT8, bias=None),
}


@pytest.mark.parametrize("case", CASES)
def test_what_is_written_reads_back(case):
    made = CASES[case]()
    found = read_ppl(write(made)["ppl_quantization.json"])
    wanted = [tensor for tensor in made.tensors if tensor.role != "bias"]
    assert set(found.tensors) == {tensor.tensor for tensor in wanted}
    for tensor in wanted:
        one = found.tensors[tensor.tensor]
        assert one.bits == tensor.scheme.grid.bits
        np.testing.assert_array_equal(np.float32(one.scale), tensor.scale)
        np.testing.assert_array_equal(one.zero_point, tensor.zero_point)
        np.testing.assert_array_equal(np.float32(one.minimum), tensor.minimum)
        np.testing.assert_array_equal(np.float32(one.maximum), tensor.maximum)


def test_operations_on_integers_are_listed():
    found = read_ppl(write(CASES["cuda"]())["ppl_quantization.json"])
    assert {"conv1", "conv2", "add", "pool", "flat", "fc"} <= set(found.integer_ops)
    assert "relu1" not in found.integer_ops


def test_a_shared_scale_is_said_by_its_dominator():
    held = json.loads(write(CASES["cuda"]())["ppl_quantization.json"])["quant_info"]
    assert held["flat"]["dominator"] == held["pool"]["hash"]
    assert held["flat"]["hash"] != held["pool"]["hash"]


def test_a_narrow_grid_of_8_bits_has_8_bits():
    """MQBench says 7, the logarithm of its 255 codes."""
    narrow = Scheme(IntGrid(8, narrow=True))
    found = read_ppl(write(deployment("ppl_w8a16", activation=narrow, bias=None))["ppl_quantization.json"])
    assert found.tensors["x"].bits == 8


def test_affine_numbers_are_refused_on_cuda():
    with pytest.raises(DeployError, match=r"'x'.*as ppl_json\n.*no zero point"):
        write(deployment("ppl_cuda", activation=UINT8))


def test_other_backends_are_refused():
    with pytest.raises(DeployError, match="ppl_json for backend 'tensorrt'"):
        write(deployment("tensorrt"))


def test_other_files_are_refused():
    with pytest.raises(ArtifactError):
        read_ppl(b'{"quant_info": {"x": {}}}')

"""OpenPPL's forms."""

from __future__ import annotations

import json

import numpy as np
import pytest

from detent.errors import ArtifactError, DeployError
from detent.numerics import IntGrid, Scheme
from detent.targets.openppl import CUDA_FORMAT, DSP_FORMAT, W8A16_FORMAT, read_ppl
from tests.targets.parameter_files.sample import UINT8, deployment

FILE = "ppl_quantization.json"
UINT16 = Scheme(IntGrid(16, signed=False), symmetric=False)
CASES = {
    "cuda": (CUDA_FORMAT, lambda: deployment("ppl_cuda")),
    "dsp": (DSP_FORMAT, lambda: deployment("ppl_dsp", activation=UINT8, weight=UINT8)),
    "w8a16": (W8A16_FORMAT, lambda: deployment("ppl_w8a16", activation=UINT16, weight=UINT8, bias=None)),
}


@pytest.mark.parametrize("case", CASES)
def test_what_is_written_reads_back(case):
    written_as, make = CASES[case]
    made = make()
    found = read_ppl(written_as.write(made).files[FILE])
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
    found = read_ppl(CUDA_FORMAT.write(deployment("ppl_cuda")).files[FILE])
    assert {"conv1", "conv2", "add", "pool", "flat", "fc"} <= set(found.integer_ops)
    assert "relu1" not in found.integer_ops


def test_a_shared_scale_is_said_by_its_dominator():
    held = json.loads(CUDA_FORMAT.write(deployment("ppl_cuda")).files[FILE])["quant_info"]
    assert held["flat"]["dominator"] == held["pool"]["hash"]
    assert held["flat"]["hash"] != held["pool"]["hash"]


def test_a_narrow_grid_of_8_bits_has_8_bits():
    """MQBench says 7, the logarithm of its 255 codes."""
    narrow = Scheme(IntGrid(8, narrow=True))
    found = read_ppl(W8A16_FORMAT.write(deployment("ppl_w8a16", activation=narrow, bias=None)).files[FILE])
    assert found.tensors["x"].bits == 8


def test_affine_numbers_are_refused_on_cuda():
    with pytest.raises(DeployError, match=r"'x'.*as ppl_json\n.*no zero point"):
        CUDA_FORMAT.write(deployment("ppl_cuda", activation=UINT8))


def test_the_form_is_that_of_the_format_whatever_the_backend():
    found = read_ppl(CUDA_FORMAT.write(deployment("tensorrt")).files[FILE])
    assert found.tensors["relu1"].scale == 0.25
    assert found.integer_ops is not None
    assert read_ppl(W8A16_FORMAT.write(deployment("tensorrt")).files[FILE]).integer_ops is None


def test_the_dsp_needs_a_caffe_model():
    assert "take a Caffe model" in DSP_FORMAT.write(deployment("ppl_dsp", activation=UINT8, weight=UINT8)).notes[0]
    assert CUDA_FORMAT.write(deployment("ppl_cuda")).notes == ()


def test_other_files_are_refused():
    with pytest.raises(ArtifactError):
        read_ppl(b'{"quant_info": {"x": {}}}')

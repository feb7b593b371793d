"""TensorRT's ranges and calibration cache."""

from __future__ import annotations

import numpy as np
import pytest

from detent.errors import ArtifactError, DeployError
from detent.targets.tensorrt import FORMAT, read_calibration_cache, read_dynamic_ranges
from tests.targets.parameter_files.sample import SCALES, UINT8, deployment


def test_both_forms_read_back_as_the_same_ranges():
    files = FORMAT.write(deployment("tensorrt", bias=None)).files
    ranges = read_dynamic_ranges(files["tensorrt_ranges.json"])
    assert ranges == read_dynamic_ranges(files["tensorrt_clip_ranges.json"])
    # The engine divides by 127, also where the grid reaches -128.
    assert {name: np.float32(value / 127) for name, value in ranges.items()} == {
        name: np.float32(scale) for name, scale in SCALES.items()
    }


def test_the_cache_reads_back_with_the_very_scales():
    cache = read_calibration_cache(FORMAT.write(deployment("tensorrt", bias=None)).files["tensorrt_calibration.cache"])
    assert cache.header.startswith("TRT-")
    assert cache.header.endswith("-EntropyCalibration2")
    assert {name: np.float32(scale) for name, scale in cache.scales.items()} == {
        name: np.float32(scale) for name, scale in SCALES.items()
    }
    assert read_calibration_cache(cache.to_bytes()) == cache


def test_a_cache_that_tensorrt_wrote():
    cache = read_calibration_cache(
        b"TRT-8401-EntropyCalibration2\ninput: 3caa54fc\n(Unnamed Layer* 64) [Shuffle]_output: 0\n"
    )
    assert cache.scales == {"input": pytest.approx(0.020792477), "(Unnamed Layer* 64) [Shuffle]_output": 0.0}


def test_weights_that_tensorrt_would_put_on_another_grid_are_named():
    made = deployment("tensorrt", bias=None)
    written = FORMAT.write(made)
    # The codes of conv1 go from -127 to 118 in its channels; those of conv2 and fc reach 127 in each.
    assert any("in conv1 these are others" in note for note in written.notes)


def test_affine_activations_are_refused():
    with pytest.raises(DeployError, match=r"'x' \(uint8 affine per-tensor\) as tensorrt_ranges\n.*signed"):
        FORMAT.write(deployment("tensorrt", activation=UINT8))


@pytest.mark.parametrize("content", [b"not a cache\n", b"TRT-8401-EntropyCalibration2\nx: zz\n"])
def test_what_is_no_cache_is_refused(content):
    with pytest.raises(ArtifactError):
        read_calibration_cache(content)


@pytest.mark.parametrize("content", [b"{", b"[]", b'{"other": {}}'])
def test_what_holds_no_ranges_is_refused(content):
    with pytest.raises(ArtifactError):
        read_dynamic_ranges(content)


def test_a_network_without_quantized_activations_has_no_ranges_and_is_read_so():
    assert read_dynamic_ranges(b'{"act_quant_info": {}}') == {}
    assert read_dynamic_ranges(b'{"tensorrt": {"blob_range": {}}}') == {}

"""NXP's model with ranges."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
import pytest

from detent.errors import ArtifactError, DeployError
from detent.numerics import IntGrid, Scheme
from detent.rewrites import float_model
from detent.targets.nxp import FORMAT, NxpRange, read_nxp
from tests.targets.parameter_files.sample import BIAS, POWER_OF_TWO, POWERS, deployment, power_of_two_deployment


def test_ranges_are_those_of_the_least_and_greatest_code():
    content = FORMAT.write(power_of_two_deployment("nxp", bias=BIAS)).files["nxp.onnx"]
    assert read_nxp(content) == {name: NxpRange(-128 * scale, 127 * scale) for name, scale in POWERS.items()}


def test_the_model_is_sound_and_computes_as_the_float_network():
    made = power_of_two_deployment("nxp", bias=BIAS)
    content = FORMAT.write(made).files["nxp.onnx"]
    onnx.checker.check_model(onnx.load_model_from_string(content), full_check=True)
    image = {"x": np.random.default_rng(0).normal(size=(2, 2, 4, 4)).astype(np.float32)}
    plain = float_model(made.model).SerializeToString()
    results = [
        onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"]).run(None, image)[0]
        for model in (content, plain)
    ]
    np.testing.assert_array_equal(*results)


def test_a_scale_that_is_no_power_of_two_is_refused():
    with pytest.raises(DeployError, match=r"'x'.*as nxp_ranges\n.*powers of two"):
        FORMAT.write(deployment("nxp", weight=POWER_OF_TWO))


def test_a_narrow_grid_is_refused():
    narrow = Scheme(IntGrid(8, narrow=True), scale="power_of_two")
    with pytest.raises(DeployError, match=r"'x'.*\n.*narrow grid lacks"):
        FORMAT.write(deployment("nxp", activation=narrow, scales=POWERS))


def test_what_is_no_model_is_refused():
    with pytest.raises(ArtifactError):
        read_nxp(b"no model")

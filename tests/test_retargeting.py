"""Retargeting: another backend's placement, bias and sharing, the same scales, nothing calibrated again."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import detent
from detent.artifact import Artifact
from detent.deploy import read_qdq
from detent.errors import ArtifactError, SchemeError
from detent.graph import quantizers_of
from detent.retargeting import restored, retargeted
from tests.deploy.float_path import prepared_for
from tests.models import MODELS


def built(name: str, backend: str, **options):
    torch.manual_seed(0)
    entry = MODELS[name]
    inputs = entry.inputs()
    return prepared_for(entry.build(), inputs, backend, **options), inputs


def scales(prepared) -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
    found = {}
    for quantizer in quantizers_of(prepared):
        qparams = quantizer.qparams()
        found[quantizer.name] = (qparams.scale, qparams.zero_point)
    return found


@pytest.mark.parametrize("name", ["residual_cnn", "mobile_cnn", "transformer_block", "linear_bn", "reused_module"])
def test_scales_are_kept_exactly(name):
    prepared, inputs = built(name, "onnxruntime")
    moved = retargeted(prepared, "openvino")
    before, after = scales(prepared), scales(moved)
    assert set(after) <= set(before)
    assert after
    for tensor, (scale, zero_point) in after.items():
        assert torch.equal(scale, before[tensor][0])
        assert torch.equal(zero_point, before[tensor][1])
    assert moved.plan.backend == "openvino"
    moved(*inputs)


def test_placement_and_bias_are_those_of_the_other_backend(tmp_path):
    prepared, inputs = built("residual_cnn", "onnxruntime")
    artifact = detent.deploy(prepared, tmp_path / "ort").retarget("openvino", tmp_path / "ov")
    assert artifact.manifest["backend"] == "openvino"
    entries = {tensor["tensor"]: tensor for tensor in artifact.manifest["tensors"]}
    assert not any(tensor["role"] == "bias" for tensor in entries.values())  # float, on OpenVINO
    assert "conv3" not in entries  # the convolution before the add
    assert artifact.verify([inputs], latency=False).holds


def test_learned_weights_are_kept_and_the_original_is_left_alone():
    prepared, inputs = built("linear_bn", "onnxruntime")
    with torch.no_grad():
        prepared.get_submodule("fc1").parametrizations.weight.original.mul_(1.5)
    before = {name: tensor.clone() for name, tensor in prepared.state_dict().items()}
    moved = retargeted(prepared, "openvino")
    weight = moved.get_submodule("fc1").parametrizations.weight
    assert torch.equal(weight.original, prepared.get_submodule("fc1").parametrizations.weight.original)
    assert all(torch.equal(tensor, before[name]) for name, tensor in prepared.state_dict().items())
    assert prepared.plan.backend == "onnxruntime"
    prepared(*inputs)


def test_what_the_other_backend_quantizes_more_is_refused_by_name():
    prepared, _ = built("residual_cnn", "openvino")
    with pytest.raises(SchemeError, match="'conv3' for onnxruntime") as caught:
        retargeted(prepared, "onnxruntime")
    assert "was not before, so it has none" in caught.value.found


def test_a_scheme_the_other_backend_has_not_is_refused_by_name():
    prepared, _ = built("residual_cnn", "onnxruntime")
    with pytest.raises(SchemeError, match="'x' for tensorrt") as caught:
        retargeted(prepared, "tensorrt")
    assert caught.value.found == "it is uint8 affine per-tensor; tensorrt has signed codes, symmetric schemes"


def test_all_forward_modes_move():
    modes = {"tensor": {"mode": "tensor"}, "predict": {"mode": "predict"}}
    prepared, (x,) = built("several_modes", "onnxruntime", modes=modes)
    with detent.observing(prepared), torch.no_grad():
        for mode in modes:
            prepared(x, mode=mode)
    moved = retargeted(prepared, "openvino")
    assert list(moved.runners) == ["tensor", "predict"]
    assert torch.allclose(moved(x, mode="predict").sum(1), torch.ones(2), atol=1e-2)


# ---- without the model in memory ----


@pytest.mark.parametrize("name", ["residual_cnn", "linear_bn", "mobile_cnn"])
def test_a_loaded_artifact_is_read_back_from_its_file(name, tmp_path):
    prepared, inputs = built(name, "onnxruntime")
    made = detent.deploy(prepared, tmp_path / "ort")
    loaded = Artifact.load(made.folder)
    assert loaded.prepared is None
    artifact = loaded.retarget("openvino", tmp_path / "ov")
    direct = made.retarget("openvino", tmp_path / "direct")
    ours, theirs = read_qdq(artifact.model), read_qdq(direct.model)
    assert {tensor: codes for tensor, codes in ours.constants.items() if tensor in ours.coded}
    mine = sorted(ours.constants[t].tobytes() for t in ours.coded)
    assert mine == sorted(theirs.constants[t].tobytes() for t in theirs.coded)  # the same codes
    assert artifact.verify([inputs], latency=False).holds


def test_what_is_read_back_gives_what_was_deployed(tmp_path):
    prepared, (x,) = built("residual_cnn", "onnxruntime")
    loaded = Artifact.load(detent.deploy(prepared, tmp_path / "ort").folder)
    with torch.no_grad():
        np.testing.assert_allclose(restored(loaded).eval()(x).numpy(), prepared(x).numpy(), rtol=1e-5, atol=1e-6)


def test_a_file_that_does_not_say_all_scales_is_refused(tmp_path):
    """The numbers of NNIE are logarithms, which ONNX cannot say."""
    prepared, _ = built("linear_bn", "nnie")
    loaded = Artifact.load(detent.deploy(prepared, tmp_path / "nnie").folder)
    with pytest.raises(ArtifactError, match="retarget the artifact that deploy returned"):
        loaded.retarget("openvino", tmp_path / "ov")
    assert not (tmp_path / "ov").exists()

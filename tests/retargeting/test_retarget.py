"""Retargeting: another backend's placement, bias and sharing, the same scales, nothing calibrated again."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import detent
from detent.artifact import Artifact
from detent.deployment import deployment_of
from detent.errors import ArtifactError, SchemeError
from detent.graph import quantizers_of
from detent.ir import read_qdq
from detent.planning import FUSED
from detent.recipes import find
from detent.retargeting import restored, retargeted
from detent.targets import BACKENDS
from tests.deployment.float_path import prepared_for
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


@pytest.mark.few(2)
@pytest.mark.parametrize("name", ["residual_cnn", "mobile_cnn", "transformer_block", "linear_bn", "reused_module"])
def test_scales_are_kept_exactly(name):
    prepared, inputs = built(name, "onnxruntime")
    moved = retargeted(prepared, "openvino")
    before, after = scales(prepared), scales(moved)
    assert set(after) <= set(before)
    assert after
    for tensor, (scale, zero_point) in after.items():
        # What is concatenated has one grid there: that of the result.
        joined = [entry.tensor for entry in moved.plan.quantized if entry.shares == tensor and entry.kind == "concat"]
        source = joined[0] if joined else tensor
        assert torch.equal(scale, before[source][0])
        assert torch.equal(zero_point, before[source][1])
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


def test_without_a_folder_it_lies_beside(tmp_path, monkeypatch):
    prepared, _ = built("linear_bn", "onnxruntime")
    monkeypatch.chdir(tmp_path)
    artifact = detent.deploy(prepared, "out/").retarget("openvino")
    assert artifact.folder == tmp_path / "out-openvino"
    assert Artifact.load("out-openvino").manifest["backend"] == "openvino"


def test_learned_weights_are_kept_and_the_original_is_left_alone():
    prepared, inputs = built("linear_bn", "onnxruntime", recipe=find("ptq").replace(cpu="vnni"))
    with torch.no_grad():
        prepared.get_submodule("fc1").parametrizations.weight.original.mul_(1.5)
    before = {name: tensor.clone() for name, tensor in prepared.state_dict().items()}
    moved = retargeted(prepared, "openvino")
    weight = moved.get_submodule("fc1").parametrizations.weight
    assert torch.equal(weight.original, prepared.get_submodule("fc1").parametrizations.weight.original)
    assert all(torch.equal(tensor, before[name]) for name, tensor in prepared.state_dict().items())
    assert prepared.plan.backend == "onnxruntime"
    prepared(*inputs)


@pytest.mark.by_default("gptq", "lsq", "dorefa")
@pytest.mark.parametrize("recipe", ["adaround", "dorefa", "gptq", "lsq"])
def test_codes_of_weights_are_kept_however_they_were_chosen(recipe):
    torch.manual_seed(0)
    x = torch.randn(4, 3, 6, 6)
    net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 4, 3))
    prepared = prepared_for(net, (x,), "onnxruntime", recipe=recipe)
    before = deployment_of(prepared).graph
    for backend in ("openvino", "litert"):
        after = deployment_of(retargeted(prepared, backend)).graph
        for name in ("0.weight", "3.weight"):
            assert np.array_equal(before.constants[name], after.constants[name])


def test_what_the_other_backend_quantizes_more_is_refused_by_name():
    """Nearly every target computes an add and its ReLU at once, so nobody measures what is between them."""
    prepared, _ = built("residual_cnn", "onnxruntime")
    apart = replace(BACKENDS["litert"], name="apart", fusions=FUSED)
    with pytest.raises(SchemeError, match="'add' for apart") as caught:
        retargeted(prepared, apart)
    assert caught.value.found == "it is quantized there (input of relu) and was not before, so it has none"
    assert caught.value.to_do == "prepare and calibrate for apart"


@pytest.mark.parametrize(
    "left_out",
    [
        {"exclude": ["conv2", "fc"]},
        {"rules": [{"match": {"name": "conv2"}, "quantize": False}, {"match": {"name": "fc"}, "quantize": False}]},
    ],
    ids=["exclude", "rule"],
)
def test_what_a_recipe_leaves_float_stays_float(left_out):
    """Though its range and its weights could be had."""
    prepared, _ = built("residual_cnn", "onnxruntime", recipe=find("ptq").replace(**left_out))
    moved = retargeted(prepared, "litert")
    quantized = {entry.tensor for entry in moved.plan.quantized}
    assert "conv1.weight" in quantized
    assert not quantized & {"conv2.weight", "fc.weight", "fc"}


def test_codes_of_the_other_sign_are_the_same_numbers(tmp_path):
    """int8 for LiteRT, uint8 for torch: 128 more, and nothing else."""
    prepared, inputs = built("residual_cnn", "litert")
    artifact = detent.deploy(retargeted(prepared, "torch_x86"), tmp_path / "torch")
    before = scales(prepared)
    own = [tensor for tensor in artifact.manifest["tensors"] if tensor["role"] == "activation" and not tensor["shares"]]
    assert len(own) > 5
    for tensor in own:
        scale, zero_point = before[tensor["tensor"]]
        assert np.float32(tensor["scale"]) == scale.numpy()
        assert tensor["zero_point"] == zero_point.item() + 128
        assert not tensor["scheme"]["grid"]["signed"]
    assert artifact.verify([inputs], latency=False).holds


class Joined(nn.Module):
    """Two tensors of very different ranges in one."""

    def __init__(self):
        super().__init__()
        self.small, self.large, self.last = nn.Conv2d(3, 4, 1), nn.Conv2d(3, 4, 1), nn.Conv2d(8, 5, 1)

    def forward(self, x):
        return self.last(torch.cat([self.small(x), 100 * self.large(x)], 1))


@pytest.mark.parametrize("backend", ["openvino", "torch_x86", "litert"])
def test_tensors_that_get_one_grid_have_one_for_the_range_of_all(backend):
    """ONNX Runtime concatenates tensors of several grids; these have one grid for what goes in and comes out."""
    torch.manual_seed(0)
    x = torch.randn(8, 3, 4, 4)
    prepared = prepared_for(Joined(), (x,), "onnxruntime")
    moved = retargeted(prepared, backend).eval()
    joined = next(scale for name, (scale, _) in scales(moved).items() if name == "small")
    assert joined == scales(prepared)["cat"][0]  # of those that were there, the one that reaches from end to end
    assert "small, mul, cat have one grid, for the range of all" in moved.plan.notes
    with torch.no_grad():
        wanted, found = prepared(x), moved(x)
    assert (wanted - found).abs().max() < 0.05 * wanted.abs().max()  # with the grid of `small` it would be all of it


def test_a_range_that_is_built_into_a_kernel_is_that_of_the_kernel(tmp_path):
    """RKNN measures what a sigmoid gives; LiteRT's has 1/256."""
    torch.manual_seed(0)
    x = torch.randn(4, 3, 6, 6)
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Sigmoid(), nn.Conv2d(4, 2, 1), nn.Flatten(), nn.Softmax(1))
    moved = retargeted(prepared_for(net, (x,), "rknn"), "litert")
    found = scales(moved)
    assert (found["_1"][0].item(), found["_1"][1].item()) == (1 / 256, -128)
    assert (found["_4"][0].item(), found["_4"][1].item()) == (1 / 256, -128)  # RKNN leaves it float
    assert detent.deploy(moved, tmp_path / "tfl").verify([x], latency=False).holds


def test_biases_follow_weights_that_keep_scales_for_channels():
    """Qualcomm's SNPE has one scale for a weight unless it is told otherwise, and QNN one for each channel."""
    prepared, inputs = built("residual_cnn", "qnn")
    moved = retargeted(prepared, "snpe")
    assert len(scales(moved)["conv1.weight"][0]) == 8
    entry = next(entry for entry in moved.plan.quantized if entry.tensor == "conv1.bias")
    assert str(entry.scheme) == "int32 symmetric per-channel(0)"
    moved(*inputs)


@pytest.mark.by_default("onnxruntime", "openvino", "litert", "ncnn", "torch_x86", "tensorrt", "vitis")
@pytest.mark.parametrize("backend", sorted(BACKENDS))
def test_the_same_backend_gives_the_same_file(backend):
    prepared, _ = built("residual_cnn", backend)
    again = retargeted(prepared, backend)
    one, two = (deployment_of(model).model.SerializeToString(deterministic=True) for model in (prepared, again))
    assert one == two


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


def test_what_moves_is_the_forward_mode_and_the_batch_that_were_deployed(tmp_path):
    modes = {"tensor": {"mode": "tensor"}, "predict": {"mode": "predict"}}
    prepared, (x,) = built("several_modes", "onnxruntime", modes=modes)
    with detent.observing(prepared), torch.no_grad():
        for mode in modes:
            prepared(x, mode=mode)
    made = detent.deploy(prepared, tmp_path / "ort", mode="predict", dynamic_batch=False)
    moved = made.retarget("openvino")
    assert moved.manifest["mode"] == "predict"
    assert [port.shape for port in moved.graph.inputs.values()] == [tuple(x.shape)]


# ---- without the model in memory ----


@pytest.mark.few(1)
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


class Swishing(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 4, 3), nn.Conv2d(4, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        return F.silu(self.second(F.silu(self.first(x))))


class Masked(nn.Module):
    """A mask of integers that is multiplied with, and a constant that is added."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(6, 6), nn.Linear(6, 3)
        self.places = nn.Parameter(torch.linspace(-1, 1, 24).reshape(1, 4, 6))

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        kept = mask.unsqueeze(-1).float()
        return self.second(((self.first(x) + self.places[:, : x.shape[1]]) * kept).sum(1) / kept.sum(1))


@pytest.mark.parametrize("backend", ["openvino", "litert", "qnn"])
def test_a_folder_with_swishes_moves_as_the_model_in_memory_does(backend, tmp_path):
    """A swish is a sigmoid and a product in the file, and was one operation when ranges were measured."""
    torch.manual_seed(0)
    x = torch.randn(2, 3, 6, 6)
    prepared = detent.prepare(Swishing().eval(), (x,), backend="onnxruntime")
    detent.calibrate(prepared, [x])
    artifact = detent.deploy(prepared, tmp_path / "out")
    direct = artifact.retarget(backend, tmp_path / "direct").manifest["tensors"]
    loaded = Artifact.load(tmp_path / "out").retarget(backend, tmp_path / "loaded").manifest["tensors"]
    assert [_numbers(row) for row in loaded] == [_numbers(row) for row in direct]


def _numbers(row: dict[str, Any]) -> tuple[Any, ...]:
    return row["tensor"], row["scale"], row["zero_point"], row["scheme"]


@pytest.mark.parametrize(("first", "second"), [("onnxruntime", "litert"), ("openvino", "onnxruntime")])
def test_a_folder_with_a_mask_and_a_constant_moves(first, second, tmp_path):
    """Casts of masks are on grids without negative numbers, and a constant that is cut is a constant of the file."""
    torch.manual_seed(0)
    batch = (torch.randn(2, 4, 6), torch.tensor([[1, 1, 1, 0], [1, 1, 0, 0]]))
    prepared = detent.prepare(Masked().eval(), batch, backend=first)
    detent.calibrate(prepared, [batch])
    artifact = detent.deploy(prepared, tmp_path / "out")
    direct = artifact.retarget(second, tmp_path / "direct")
    loaded = Artifact.load(tmp_path / "out").retarget(second, tmp_path / "loaded")
    found, wanted = ({row["tensor"]: _numbers(row) for row in one.manifest["tensors"]} for one in (loaded, direct))
    for name in ("x", "first", "add", "float_1", "mul", "truediv"):
        assert found[name] == wanted[name]
    assert "getitem_1" in found
    assert loaded.verify([batch], latency=False).holds

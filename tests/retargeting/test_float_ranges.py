"""What only the other backend quantizes: its range was measured with the others."""

from __future__ import annotations

import json

import pytest
import torch
from torch import nn

import detent
from detent.artifact import Artifact
from detent.deployment import deployment_of
from detent.errors import FloatModelWarning, SchemeError
from detent.graph import quantizers_of
from detent.retargeting import retargeted
from tests.deployment.float_path import prepared_for
from tests.models import MODELS

X = torch.linspace(-1, 3, 24).reshape(4, 6)


def classifier() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3)).eval()


def numbers(prepared) -> dict[str, tuple[str, list[float], list[int]]]:
    found = {}
    for quantizer in quantizers_of(prepared):
        qparams = quantizer.qparams()
        found[quantizer.name] = (
            str(quantizer.scheme), qparams.scale.flatten().tolist(), qparams.zero_point.flatten().tolist(),
        )  # fmt: skip
    return found


@pytest.mark.pairwise(strength=1)
@pytest.mark.parametrize("backend", ["litert", "rknn", "executorch_xnnpack"])
@pytest.mark.parametrize("recipe", ["ptq", "percentile", "mse"])
def test_the_output_has_the_scale_that_calibrating_for_the_target_gives(backend, recipe):
    """ONNX Runtime leaves the logits float; these have a grid for them."""
    moved = retargeted(prepared_for(classifier(), (X,), "onnxruntime", recipe=_observed(recipe)), backend)
    direct = prepared_for(classifier(), (X,), backend, recipe=_observed(recipe))
    assert "_2" in numbers(moved)
    assert numbers(moved) == numbers(direct)


def _observed(observer: str) -> detent.Recipe:
    plain = detent.recipes.find("ptq").replace(cpu="vnni")  # other targets do not widen the steps of weights
    return plain if observer == "ptq" else plain.replace(activation=plain.activation.replace(observer=observer))


@pytest.mark.parametrize("backend", ["torch_x86", "qnn", "snpe", "native"])
def test_so_have_targets_whose_weights_or_rounding_are_others(backend):
    moved = retargeted(prepared_for(classifier(), (X,), "onnxruntime"), backend)
    direct = prepared_for(classifier(), (X,), backend)
    found, wanted = numbers(moved), numbers(direct)
    assert {name: found[name] for name in ("input_1", "_1", "_2")} == {
        name: wanted[name] for name in ("input_1", "_1", "_2")
    }


@pytest.mark.parametrize("name", ["residual_cnn", "mobile_cnn"])
@pytest.mark.parametrize("target", ["onnxruntime", "litert"])
def test_openvino_leaves_more_of_it_float_and_moves_all_the_same(name, target, tmp_path):
    torch.manual_seed(0)
    inputs = MODELS[name].inputs()
    first = prepared_for(MODELS[name].build(), inputs, "openvino")
    artifact = detent.deploy(first, tmp_path / "ov").retarget(target)
    assert artifact.verify([inputs], latency=False).holds


@pytest.mark.parametrize("source", ["onnxruntime", "rknn"])
@pytest.mark.parametrize("name", ["mobile_cnn", "linear_bn"])
def test_where_the_schemes_agree_the_file_is_that_of_calibrating_for_the_target(name, source):
    torch.manual_seed(0)
    net, inputs = MODELS[name].build(), MODELS[name].inputs()
    moved = retargeted(prepared_for(net, inputs, source, recipe=_observed("ptq")), "litert")
    one, two = (
        deployment_of(model).model.SerializeToString(deterministic=True)
        for model in (moved, prepared_for(net, inputs, "litert"))
    )
    assert one == two


def test_what_is_inside_of_a_fused_chain_has_a_range_where_others_do_not_fuse_it():
    """TensorRT computes a convolution and its SiLU at once; MNN has a grid between them."""
    torch.manual_seed(0)
    x = torch.linspace(-1, 1, 4 * 3 * 6 * 6).reshape(4, 3, 6, 6)
    net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.SiLU(), nn.Conv2d(8, 4, 3))
    first = prepared_for(net, (x,), "tensorrt")
    assert "_0" not in [entry.tensor for entry in first.plan]
    with torch.no_grad():
        given = net[0](x)
    assert numbers(retargeted(first, "mnn"))["_0"][1] == [float(torch.maximum(given.max() / 127, -given.min() / 128))]


def test_what_is_only_put_in_another_order_has_the_range_it_had():
    """RKNN has a grid for what a Flatten gives; TVM has none for a linear layer, nor for what is before it."""
    x = torch.linspace(-1, 3, 24).reshape(4, 2, 3)
    net = nn.Sequential(nn.Flatten(), nn.Linear(6, 3))
    with pytest.warns(FloatModelWarning):
        first = prepared_for(net, (x,), "tvm")
    moved = retargeted(first, "rknn")
    assert numbers(moved) == numbers(prepared_for(net, (x,), "rknn"))


def test_the_file_has_no_grid_for_it_and_the_manifest_says_the_range(tmp_path):
    made = detent.deploy(prepared_for(classifier(), (X,), "onnxruntime"), tmp_path / "ort")
    assert [node.op_type for node in made.model.graph.node][-2:] == ["Gemm", "Identity"]
    assert "_2" not in [tensor["tensor"] for tensor in made.manifest["tensors"]]
    [one] = made.manifest["ranges"]
    with torch.no_grad():
        logits = classifier()(X)
    assert one["tensor"] == "_2"
    assert one["scale"] == pytest.approx(float(logits.max() - logits.min()) / 255, rel=1e-6)


def test_a_loaded_artifact_has_it_from_the_manifest(tmp_path):
    made = detent.deploy(prepared_for(classifier(), (X,), "onnxruntime"), tmp_path / "ort")
    direct = made.retarget("litert", tmp_path / "direct")
    moved = Artifact.load(made.folder).retarget("litert", tmp_path / "moved")
    one, two = (
        sorted((t["scale"], t["zero_point"]) for t in artifact.manifest["tensors"] if t["role"] == "activation")
        for artifact in (direct, moved)
    )
    assert one == two
    assert moved.verify([X], latency=False).holds


def test_an_older_artifact_is_refused_in_a_sentence(tmp_path):
    made = detent.deploy(prepared_for(classifier(), (X,), "onnxruntime"), tmp_path / "ort")
    manifest = made.folder / "manifest.json"
    said = json.loads(manifest.read_text())
    del said["ranges"]
    manifest.write_text(json.dumps(said))
    older = Artifact.load(made.folder)
    with pytest.raises(SchemeError, match="for litert") as caught:
        older.retarget("litert")
    assert caught.value.found.startswith("it is quantized there (output of linear) and no range of it is known: ")
    assert older.retarget("openvino").verify([X], latency=False).holds  # where it is float too


def test_a_range_from_before_training_is_refused_and_can_be_measured_again():
    prepared = prepared_for(classifier(), (X,), "onnxruntime", recipe="lsq")
    prepared.train()
    optimizer = torch.optim.SGD(prepared.parameters(), lr=0.5)
    prepared(X).square().mean().backward()
    optimizer.step()
    prepared.eval()
    with pytest.raises(SchemeError, match="before training changed the weights") as caught:
        retargeted(prepared, "litert")
    assert "`with detent.observing(prepared, only_float=True)`" in caught.value.to_do
    with detent.observing(prepared, only_float=True), torch.no_grad():
        logits = prepared(X)
    moved = retargeted(prepared, "litert")
    before, after = numbers(prepared), numbers(moved)
    assert after["_1"][1] == before["_1"][1]  # learned
    with torch.no_grad():
        step = after["_2"][1][0]
        assert (moved(X) - logits).abs().max() <= step / 2 * 1.001


def test_weights_that_were_float_need_no_data():
    """TVM has no integers for linear layers."""
    torch.manual_seed(0)
    x = torch.linspace(-1, 1, 2 * 3 * 4 * 4).reshape(2, 3, 4, 4)
    net = nn.Sequential(nn.Conv2d(3, 4, 1), nn.ReLU(), nn.Flatten(), nn.Linear(64, 3)).eval()
    first = prepared_for(net, (x,), "tvm")
    assert "3.weight" not in numbers(first)
    moved, direct = retargeted(first, "onnxruntime"), prepared_for(net, (x,), "onnxruntime", recipe=_observed("ptq"))
    assert numbers(moved)["3.weight"] == numbers(direct)["3.weight"]


# ---- there and back ----


@pytest.mark.pairwise(strength=1)
@pytest.mark.parametrize(
    ("name", "first", "second"),
    [
        ("residual_cnn", "onnxruntime", "openvino"),
        ("residual_cnn", "onnxruntime", "litert"),
        ("residual_cnn", "openvino", "torch_x86"),
        ("unet", "onnxruntime", "litert"),  # one grid for what is concatenated
        ("transformer_block", "litert", "qnn"),
        ("linear_bn", "ncnn", "onnxruntime"),
    ],
)
def test_back_again_gives_the_first_file(name, first, second):
    torch.manual_seed(0)
    inputs = MODELS[name].inputs()
    prepared = prepared_for(MODELS[name].build(), inputs, first)
    back = retargeted(retargeted(prepared, second), first)
    one, two = (deployment_of(model).model.SerializeToString(deterministic=True) for model in (prepared, back))
    assert one == two


# ---- narrow ranges ----


def test_a_narrow_range_becomes_a_full_one_with_the_same_scale():
    first = prepared_for(classifier(), (X,), "ncnn")
    before, after = numbers(first), numbers(retargeted(first, "onnxruntime"))
    assert before["input_1"] == ("int8 narrow symmetric per-tensor half_away", before["input_1"][1], [0])
    assert after["input_1"] == ("uint8 affine per-tensor", before["input_1"][1], [128])  # what is fast there


def test_a_full_range_becomes_a_narrow_one_and_the_plan_says_so():
    first = prepared_for(classifier(), (X,), "tensorrt")
    moved = retargeted(first, "ncnn")
    assert numbers(moved)["input_1"][1:] == numbers(first)["input_1"][1:]
    assert "input_1 has its scale on a narrow range there, which is one code less" in moved.plan.notes


def test_weights_that_use_the_least_code_are_refused_on_a_narrow_range():
    net = classifier()
    with torch.no_grad():
        net[0].weight[0, 0] = -5.0
    with pytest.raises(SchemeError, match=r"keep the codes of '0\.weight' for litert"):
        retargeted(prepared_for(net, (X,), "torch_x86"), "litert")
    with torch.no_grad():
        for layer in (net[0], net[2]):
            layer.weight.copy_(layer.weight.abs())  # no code is below 0
    moved = retargeted(prepared_for(net, (X,), "torch_x86"), "litert")
    assert numbers(moved)["0.weight"][0] == "int8 narrow symmetric per-channel(0)"

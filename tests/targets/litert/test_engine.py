"""LiteRT behind the interface of engines."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch

pytest.importorskip("ai_edge_litert", reason="pip install 'detent[litert]'")

import detent
from detent.deployment import deployment_of
from detent.errors import EngineError
from detent.ir import Package, read_qdq
from detent.recipes import Recipe, TensorRequest
from detent.targets.litert.arithmetic.xnnpack import Xnnpack
from detent.targets.litert.engine import LiteRT
from detent.targets.litert.file import model_to_tflite, network_of, read_tflite
from detent.twin import OnnxSpec, Twin
from tests.models import MODELS
from tests.targets.litert.nets import lite_net
from tests.twin.builder import Net, Style


def package(net: Net, folder: Path) -> Package:
    (folder / "model.onnx").write_bytes(net.model.SerializeToString())
    (folder / "model.tflite").write_bytes(model_to_tflite(net.model))
    return Package(folder, {"files": {"model.onnx": "", "model.tflite": ""}})


def of_widths(weight: int, activation: int) -> Recipe:
    return Recipe(name="widths", weight=TensorRequest(bits=weight), activation=TensorRequest(bits=activation))


def loaded(kind: str, **options: str) -> tuple[LiteRT, Net]:
    net = lite_net(kind, Style(seed=5))
    return LiteRT(model_to_tflite(net.model), graph=read_qdq(net.model), **options), net  # type: ignore[arg-type]


@pytest.mark.parametrize("kernels", ["xnnpack", "builtin", "reference"])
def test_outputs_are_in_the_layout_of_onnx(kernels: str) -> None:
    engine, net = loaded("conv", kernels=kernels)
    (found,) = engine.run(net.feeds).values()
    (expected,) = Twin(net.model, OnnxSpec()).run(net.feeds).values()
    assert found.shape == expected.shape == (2, 24, 10, 10)
    step = float(read_qdq(net.model).outputs[0].read.encoding.scale)  # type: ignore[union-attr]
    assert np.abs(found - expected).max() <= 1.01 * step  # one rounding that falls otherwise


@pytest.mark.parametrize("kind", ["conv", "conv_transpose"])
def test_any_batch(kind: str) -> None:
    """Resized, or one sample after the other where the file holds its size."""
    engine, net = loaded(kind)
    (both,) = engine.run(net.feeds).values()
    for index in range(2):
        (one,) = engine.run({name: array[index : index + 1] for name, array in net.feeds.items()}).values()
        assert (one[0] == both[index]).all()


def test_from_a_deployed_folder(tmp_path: Path) -> None:
    net = lite_net("residual", Style())
    held = package(net, tmp_path)
    integer, real = LiteRT.load(held), LiteRT.load(held, as_float=True, threads=2)
    outputs = [next(iter(engine.run(net.feeds).values())) for engine in (integer, real)]
    assert outputs[0].shape == outputs[1].shape
    assert (outputs[0] != outputs[1]).any()
    # The float network is what the integer one approximates: 8 bits in six layers.
    assert np.abs(outputs[0] - outputs[1]).max() < 0.2 * np.abs(outputs[1]).max()
    assert {placement.ran_as for placement in real.explain()} <= {"float", "folded"}


def test_every_tensor_inside() -> None:
    engine, net = loaded("residual")
    theirs, ours = engine.tensors(net.feeds), Twin(net.model, Xnnpack()).tensors(net.feeds)
    assert theirs.keys() >= ours.keys()
    for name, array in ours.items():
        assert theirs[name].dtype == array.dtype == np.uint8
        assert (theirs[name] == array).all()


def test_tensors_in_float_are_shown_as_real_numbers() -> None:
    engine, net = loaded("float_add")
    inside = engine.tensors(net.feeds)
    assert {name: array.dtype.kind for name, array in inside.items()} == {
        "x": "u",
        "conv1": "f",
        "relu3": "u",
        "relu3_dequantized": "f",
    }


def test_explain_says_what_ran_on_integers() -> None:
    engine, net = loaded("residual")
    placements = {placement.op.split(".")[1]: placement for placement in engine.explain()}
    assert placements["Conv"].ran_as == placements["Add"].ran_as == placements["Gemm"].ran_as == "integer"
    assert placements["Relu"].ran_as == "folded"
    assert len(engine.explain()) == len(read_qdq(net.model).ops)


def test_explain_says_why_not() -> None:
    engine, _ = loaded("float_add")
    (conv, *_) = engine.explain()
    assert (conv.kind, conv.ran_as) == ("Conv", "float")
    assert "not on a grid" in conv.why
    swish, _ = loaded("hardswish")
    (placement,) = swish.explain()
    assert (placement.ran_as, placement.why) == ("integer", "in LiteRT's own kernel, not XNNPACK's")


def test_refusals() -> None:
    engine, net = loaded("conv")
    with pytest.raises(EngineError, match="takes x"):
        engine.run({"y": net.feeds["x"]})
    with pytest.raises(EngineError, match="shape"):
        engine.run({"x": net.feeds["x"][:, :3]})
    with pytest.raises(EngineError, match="xnnpack, builtin, reference"):
        loaded("conv", kernels="fast")


def test_version_and_its_absence(monkeypatch: pytest.MonkeyPatch) -> None:
    assert LiteRT.version() is not None
    monkeypatch.setattr(LiteRT, "version", classmethod(lambda _cls: None))
    with pytest.raises(EngineError, match=r"detent\[litert\]"):
        LiteRT(b"")


@pytest.mark.parametrize("kind", ["residual", "flatten", "concat_moved", "matmul", "resize_linear", "conv_transpose"])
def test_a_file_read_back_is_the_same_network(kind: str) -> None:
    """The twin on the file itself, in place of the ONNX model it was written from."""
    net = lite_net(kind, Style(seed=5))
    content = model_to_tflite(net.model)
    (expected,) = Twin(net.model, Xnnpack()).run(net.feeds).values()
    (found,) = Twin(network_of(read_tflite(content)), Xnnpack()).run(net.feeds).values()
    assert (found == expected).all()


@pytest.mark.parametrize("kind", ["residual", "flatten", "concat_moved", "matmul", "softmax_fixed", "depthwise"])
@pytest.mark.parametrize("weight", ["int8", "int4"])
def test_a_file_on_16_bits_read_back_is_the_same_network(kind: str, weight: str) -> None:
    net = lite_net(kind, Style(activation="int16", symmetric=True, weight=weight, weight_range=7, seed=5))
    content = model_to_tflite(net.model)
    (expected,) = Twin(net.model, Xnnpack()).run(net.feeds).values()
    (found,) = Twin(network_of(read_tflite(content)), Xnnpack()).run(net.feeds).values()
    assert (found == expected).all()


@pytest.mark.pairwise
@pytest.mark.parametrize("bits", [(8, 16), (4, 8), (4, 16)], ids=["w8a16", "w4a8", "w4a16"])
@pytest.mark.parametrize("backend", ["litert", "tflite_micro"])
@pytest.mark.parametrize("name", ["residual_cnn", "transformer_block"])
def test_other_widths_are_verified(name: str, backend: str, bits: tuple[int, int], tmp_path: Path) -> None:
    torch.manual_seed(0)
    entry = MODELS[name]
    inputs = entry.inputs()
    prepared = detent.prepare(entry.build().eval(), inputs, backend=backend, recipe=of_widths(*bits))
    detent.calibrate(prepared, [inputs])
    artifact = detent.deploy(prepared, tmp_path / "out")
    verdict = artifact.verify([inputs])
    assert verdict.holds, str(verdict)
    placed = Counter(placement.ran_as for placement in LiteRT.load(artifact).explain())
    # Of the block, two layer norms and a division by a number stay float, as with 8 bits.
    assert placed["float"] == (3 if name == "transformer_block" else 0)
    usual = detent.prepare(entry.build().eval(), inputs, backend=backend)
    detent.calibrate(usual, [inputs])
    size = len(model_to_tflite(deployment_of(usual).model))
    assert ((tmp_path / "out" / "model.tflite").stat().st_size < size) == (bits[0] == 4)


@pytest.mark.few(5)
@pytest.mark.parametrize(
    ("name", "bits"),
    [
        *((name, (8, 8)) for name in ("resnet20", "mobilenet_v3_small", "regnetx", "unet")),
        *((name, (8, 8)) for name in ("vit_block", "residual_cnn", "dict_io")),
        *(("resnet20", bits) for bits in ((8, 16), (4, 8), (4, 16))),
        ("unet", (8, 16)),
    ],
    ids=lambda value: value if isinstance(value, str) else f"w{value[0]}a{value[1]}",
)
def test_prepared_networks_run_as_the_twin_says(name: str, bits: tuple[int, int]) -> None:
    torch.manual_seed(0)
    entry = MODELS[name]
    inputs = entry.inputs()
    prepared = detent.prepare(entry.build().eval(), inputs, backend="litert", recipe=of_widths(*bits))
    detent.calibrate(prepared, [inputs])
    deployment = deployment_of(prepared)
    graph = deployment.graph
    flat = [each for value in inputs for each in (value.values() if isinstance(value, dict) else [value])]
    feeds = {port: value.numpy() for port, value in zip(graph.inputs, flat, strict=True)}
    engine = LiteRT(model_to_tflite(deployment.model), graph=graph)
    theirs, ours = engine.run(feeds), Twin(graph, Xnnpack()).run(feeds)
    assert {output: int((theirs[output] != ours[output]).sum()) for output in ours} == dict.fromkeys(ours, 0)
    assert "integer" in {placement.ran_as for placement in engine.explain()}


def test_samples_of_a_file_of_one_size_are_joined_where_they_lie(tmp_path: Path) -> None:
    """In attention the batch is the second axis of queries, keys and values, and positions have none."""
    torch.manual_seed(0)
    inputs = MODELS["vit_small"].inputs()
    prepared = detent.prepare(MODELS["vit_small"].build().eval(), inputs, backend="litert")
    detent.calibrate(prepared, [inputs])
    artifact = detent.deploy(prepared, tmp_path / "out")
    feeds = {"x": inputs[0].numpy()}
    theirs = LiteRT.load(artifact).tensors(feeds)
    ours = Twin(artifact, Xnnpack()).tensors(feeds)
    assert len(theirs) > 20
    assert all(values.shape == ours[name].shape for name, values in theirs.items() if name in ours)
    queries = next(values for name, values in theirs.items() if name == "permute")
    assert queries.shape[:2] == (3, 2)

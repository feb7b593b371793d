"""Whole networks after the rewrites of their target: all of it on integers, what was simulated, and back again."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from onnx import numpy_helper

import detent
from detent.artifact import Artifact
from detent.deployment import deployment_of
from detent.ir import read_qdq
from detent.rewrites import float_model
from detent.rewrites.original import Original
from detent.rewrites.undo import undo
from detent.targets import BACKENDS
from detent.verification.files import disagreements
from tests.models import MODELS


def deployed(name: str, folder: Path) -> tuple[Artifact, tuple[torch.Tensor, ...]]:
    torch.manual_seed(0)
    entry = MODELS[name]
    inputs = entry.inputs()
    prepared = detent.prepare(entry.build().eval(), inputs, backend="onnxruntime")
    detent.calibrate(prepared, [inputs])
    return detent.deploy(prepared, folder), inputs


@pytest.mark.by_default("unet", "resnet18", "conv_transpose_bn")
@pytest.mark.parametrize("name", ["unet", "conv_transpose_bn", "resnet18", "mobilenet_v2"])
def test_a_network_of_convolutions_runs_on_integers(name, tmp_path):
    artifact, inputs = deployed(name, tmp_path / "out")
    verdict = artifact.verify([inputs], latency=False)
    assert verdict.holds, verdict
    assert verdict.in_float == ()
    ends = {difference.what: difference for difference in verdict.outputs}
    assert ends["twin vs engine"].equal


def test_a_transformer_has_no_addition_of_a_bias_in_float(tmp_path):
    artifact, inputs = deployed("vit_block", tmp_path / "out")
    verdict = artifact.verify([inputs], latency=False)
    assert verdict.holds, verdict
    kinds = {placed["op"]: placed["kind"] for placed in verdict.placements}
    # The product with a constant that is not quantized is `query * scale`.
    assert {kinds[op] for op in verdict.in_float} == {"LayerNormalization", "Gelu", "Mul"}
    assert [kinds[op] for op in ("attn_qkv", "attn_proj", "mlp_fc1", "mlp_fc2")] == ["Gemm"] * 4


@pytest.mark.parametrize("name", ["unet", "resnet18"])
def test_the_file_loads_with_the_models_own_operations_and_scales(name, tmp_path):
    artifact, inputs = deployed(name, tmp_path / "out")
    again = detent.prepare(detent.load(artifact.folder / "model.onnx"), inputs, backend="onnxruntime").eval()
    assert all(quantizer.calibrated for quantizer in detent.graph.quantizers_of(again))
    with torch.no_grad():
        torch.testing.assert_close(again(*inputs), artifact.prepared.eval()(*inputs))
    moved = Artifact.load(artifact.folder).retarget("openvino", tmp_path / "moved")
    originals = [original for op in moved.graph.ops if (original := Original.of(op)) is not None]
    # The rewrite they have in common.
    assert {original.rewrite for original in originals} == ({"conv_transpose_as_conv"} if name == "unet" else set())
    first = {op.type: op for op in reversed(undo(moved.graph).ops)}
    assert first["ConvTranspose" if name == "unet" else "Conv"].attribute("strides") == [2, 2]


def test_the_float_network_is_that_of_a_target_without_rewrites(tmp_path):
    artifact, _ = deployed("unet", tmp_path / "out")
    prepared = artifact.prepared
    prepared.backend = replace(BACKENDS["onnxruntime"], rewrites=())
    plain, undone = float_model(deployment_of(prepared).model), float_model(artifact.model)
    assert [n.op_type for n in undone.graph.node] == [n.op_type for n in plain.graph.node]


@pytest.mark.parametrize("phase", [0, 3])
def test_a_corrupted_scale_of_one_phase_is_located(phase, tmp_path):
    artifact, _ = deployed("unet", tmp_path / "out")
    assert list(disagreements(artifact.graph, artifact.manifest)) == []
    model = artifact.model
    held = next(t for t in model.graph.initializer if t.name == "up.0.weight_phases_scale")
    scales = np.array(numpy_helper.to_array(held))
    channels = scales.size // 4
    scales[phase * channels + 2] *= 2
    held.CopyFrom(numpy_helper.from_array(scales, held.name))
    found = list(disagreements(read_qdq(model), artifact.manifest))
    assert len(found) == 1
    assert found[0].startswith("up.0.weight: model.onnx has ")
    assert "scale of channel 2" in found[0]

"""`detent.bit_exact`: a prepared model under the arithmetic of its target equals the twin and the engine."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import detent
from detent.errors import NotCalibratedError, TensorError
from detent.targets.arithmetics import ARITHMETICS
from detent.targets.engines import ENGINES
from detent.twin import Twin
from tests.deployment.float_path import prepared_for, tensors_of
from tests.models import MODELS


def built(name: str, backend: str = "onnxruntime"):
    torch.manual_seed(0)
    entry = MODELS[name]
    inputs = entry.inputs()
    return prepared_for(entry.build(), inputs, backend), inputs


@pytest.mark.parametrize("name", ["residual_cnn", "mobile_cnn", "linear_bn", "reused_module"])
def test_it_is_what_the_twin_and_the_engine_give(name, tmp_path):
    prepared, inputs = built(name)
    found = tensors_of(detent.bit_exact(prepared)(*inputs))
    artifact = detent.deploy(prepared, tmp_path / "out")
    feeds = dict(zip(artifact.graph.inputs, (t.numpy() for t in tensors_of(inputs)), strict=True))
    twin = Twin(artifact.graph, ARITHMETICS["onnxruntime"]()).run(feeds)
    engine = ENGINES["onnxruntime"].load(artifact).run(feeds)
    for ours, theirs, real in zip(found, twin.values(), engine.values(), strict=True):
        assert np.array_equal(ours.numpy(), theirs)
        assert np.array_equal(ours.numpy(), real)


@pytest.mark.by_default("yolo_head", "dict_io", "dataclass_io")
@pytest.mark.parametrize("name", ["dict_io", "dataclass_io", "yolo_head", "bert_encoder", "lstm_tagger"])
def test_what_comes_out_is_structured_as_before(name):
    prepared, _ = built(name)
    exact, inputs = detent.bit_exact(prepared), MODELS[name].inputs()  # others than it was made with
    with torch.no_grad():
        wanted = prepared(*inputs)
    found = exact(*inputs)
    assert type(found) is type(wanted)
    ours, theirs = tensors_of(found), tensors_of(wanted)
    assert [t.shape for t in ours] == [t.shape for t in theirs]
    if isinstance(wanted, dict):
        assert list(found) == list(wanted)
    for one, other in zip(ours, theirs, strict=True):
        # Another rounding of some sums: a few steps of 8 bits at most, over all layers.
        assert float((one - other).abs().max()) <= 0.1 * float(other.abs().max())


def test_it_is_a_picture_of_one_moment():
    prepared, (x,) = built("linear_bn")
    exact = detent.bit_exact(prepared)
    before = exact(x)
    with torch.no_grad():
        prepared.get_submodule("fc2").parametrizations.weight.original.mul_(-1)
    assert torch.equal(exact(x), before)
    assert not torch.equal(detent.bit_exact(prepared)(x), before)


def test_another_arithmetic_may_be_named():
    prepared, (x,) = built("residual_cnn")
    exact = detent.bit_exact(prepared, "onnx_spec")
    assert "onnx_spec" in repr(exact)
    assert exact(x).shape == prepared(x).shape


def test_the_model_stays_in_the_mode_it_was_in():
    prepared, (x,) = built("linear_bn")
    prepared.train()
    statistics = {name: buffer.clone() for name, buffer in prepared.named_buffers()}
    detent.bit_exact(prepared)(x)
    assert all(module.training for module in prepared.modules())
    assert all(torch.equal(buffer, statistics[name]) for name, buffer in prepared.named_buffers())


def test_keywords_are_taken():
    prepared, (x,) = built("linear_bn")
    exact = detent.bit_exact(prepared)
    assert torch.equal(exact(x=x), exact(x))


def test_arguments_in_another_order_are_matched_by_name():
    torch.manual_seed(0)
    entry = MODELS["conv1d_3d"]
    sequence, volume = entry.inputs()
    prepared = prepared_for(entry.build(), (sequence, volume), "onnxruntime")
    exact = detent.bit_exact(prepared)
    assert torch.equal(exact(volume=volume, sequence=sequence), exact(sequence, volume))


def test_the_wrong_number_of_inputs_is_refused():
    prepared, (x,) = built("linear_bn")
    with pytest.raises(TensorError, match="the network takes x"):
        detent.bit_exact(prepared)(x, x)


def test_a_model_without_scales_is_refused():
    entry = MODELS["linear_bn"]
    prepared = detent.prepare(entry.build(), entry.inputs(), backend="onnxruntime")
    with pytest.raises(NotCalibratedError):
        detent.bit_exact(prepared)
